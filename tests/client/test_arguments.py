"""Every public call with every wrong argument: an error of ours, nothing stored, and others unharmed.

The same calls in the same process, through the blocking twin, and through a server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everlog import Aggregate, event, sync
from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.core.arguments import check_append_id
from everlog.core.events import Event, Json
from everlog.core.json_text import MAX_DEPTH
from everlog.core.record import Record
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import MAX_SEQ_NR, Position, SeqRange
from everlog.errors import EverlogError, InvalidInput, UnreadableJson
from everlog.errors.storage import needs_storage
from everlog.journal.journal import Token
from everlog.journal.snapshots import Criteria
from everlog.testing import replicate
from tests.support import START_MS, at_depth, produce_raw, small_config

HALF = "\ud800"
NAN = float("nan")
HUGE = 10**5000


def nested(levels: int, inside: Any = 1) -> Any:
    for level in range(levels):
        inside = [inside] if level % 2 else {"k": inside}
    return inside


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@dataclasses.dataclass
class Reading:
    celsius: float


NO_TEXT = [5, 1.5, True, b"x", [], {}, object(), NAN, HALF, f"a{HALF}b", ""]
TEXT = [*NO_TEXT, "x" * 10_000]
NO_WHOLE = ["1", 1.5, True, -1, 2**63, HUGE, NAN, float("inf"), [], object(), HALF]
NO_COUNT = [one for one in NO_WHOLE if one not in (2**63, HUGE)]
NO_FLAG = [1, 0, "yes", "", [], object(), HALF]
NO_POSITION = [5, 1.5, True, b"t:0:0", [], object(), ("t", 0, 0), "", "t", "t:0", "t:-1:0", "t:0:x", f"{HALF}:0:0"]
NO_POSITION += ["t:0:" + "9" * 5000, f"t:0:{2**63}", NAN]
NO_SECONDS = ["1", -1, NAN, float("inf"), True, [], object()]
NO_JSON = [
    object(),
    {"a": object()},
    NAN,
    [float("inf")],
    {"a": {"b": float("-inf")}},
    {NAN: 1},
    Reading(NAN),
    [None, Reading(float("inf"))],
    {"a": HALF},
    {HALF: 1},
    nested(MAX_DEPTH + 1),
    nested(5000),
    endless(),
    HUGE,
    {(1, 2): 3},
    msgspec.Raw(b"{"),
    {"a": msgspec.Raw(b"[1,]")},
    msgspec.Raw(b"1e999"),
    msgspec.Raw(b'"\\ud800"'),
    msgspec.Raw(b'"\xff"'),
]
NO_HEADERS = [5, "a=b", [("a", "b")], {"a": 5}, {5: "a"}, {"a": None}, {"a": b"x"}, {HALF: "x"}, {"x": HALF}, {"": "x"}]
NO_HEADERS += [{"a\0b": "x"}, {"journal.action": "x"}, {"x": "y" * 2_000_000}]
NO_EVENTS = [5, None, "abc", b"abc", {}, object(), [], [5], ["a"], [{"payload": 1}], [Event(1), None], {"a": Event(1)}]
NO_TAGS = [5, "abc", [5], [None], [[]], [b"x"], [HALF], [""], ["a\0"], ["x" * 2000], object()]
NO_OFFSET = [5, 1.5, True, b"x", [], object(), "", "x", HALF, TimeUuid("a", None), TimeUuid(1.5, 2)]  # type: ignore[arg-type]
NO_TIME = [5, "2026-01-01", True, datetime(2026, 1, 1), datetime(1, 1, 1, tzinfo=UTC), object(), NAN]  # noqa: DTZ001
NO_DURATION = [5, 1.5, "1 day", True, timedelta(0), timedelta(days=-1), object()]
NO_APPEND_ID = [
    5,
    True,
    b"1.x",
    "",
    "1",
    "1.",
    ".x",
    "x.y",
    "1.\ud800",
    "1.a b",
    "1." + "x" * 300,
    "9" * 5000 + ".x",
    "-1.x",
]

Call = Callable[[Any, Any], Any]


def append(**options: Any) -> Call:
    (name,) = [name for name, value in options.items() if value is ...]
    return lambda log, wrong: log.journal("t").append("k", Event(1), **{**options, name: wrong})


JOURNALS: dict[str, tuple[Call, list[Any]]] = {
    "journal": (lambda log, wrong: log.journal(wrong), [*TEXT, None, "a b", "a/b", "ü"]),
    "append id": (lambda log, wrong: log.journal("t").append(wrong, Event(1)), [*TEXT, None]),
    "append events": (lambda log, wrong: log.journal("t").append("k", wrong), NO_EVENTS),
    "append payload": (
        lambda log, wrong: log.journal("t").append("k", Event(wrong)),
        [*NO_JSON, HALF, "x" * 2_000_000],
    ),
    "append Json": (lambda log, wrong: log.journal("t").append("k", Event(Json(wrong))), [*NO_JSON, HALF]),
    "append to a new topic": (
        lambda log, wrong: log.journal("new").append("k", Event(wrong)),
        [NAN, HALF, "x" * 2_000_000],
    ),
    "append tags": (lambda log, wrong: log.journal("t").append("k", Event(1, tags=wrong)), NO_TAGS),
    "append seq_nr": (lambda log, wrong: log.journal("t").append("k", Event(1, seq_nr=wrong)), [*NO_WHOLE, 0]),
    "append expected": (append(expected=...), NO_WHOLE),
    "append expire_after": (append(expire_after=...), NO_DURATION),
    "append metadata": (append(metadata=...), [*NO_JSON, HALF, "x" * 2_000_000]),
    "append header_metadata": (append(header_metadata=...), [*NO_JSON, HALF, "x" * 2_000_000]),
    "append headers": (append(headers=...), NO_HEADERS),
    "append verdict": (append(verdict=...), [*NO_FLAG, None]),
    "append append_id": (append(append_id=...), NO_APPEND_ID),
    "append idempotency_key": (append(idempotency_key=..., expected=2), [*TEXT, "a b", "ü"]),
    "append token": (append(expected=...), [Token("u", 0, 0, range=SeqRange(1, 2)), Position("t", 0, 0)]),
    "read id": (lambda log, wrong: log.journal("t").read(wrong), [*TEXT, None]),
    "read from_seq": (lambda log, wrong: log.journal("t").read("k", from_seq=wrong), [*NO_WHOLE, 0, None]),
    "read to_seq": (lambda log, wrong: log.journal("t").read("k", to_seq=wrong), [*NO_WHOLE, 0, None]),
    "read limit": (lambda log, wrong: log.journal("t").read("k", limit=wrong), [*NO_WHOLE, 0]),
    "read reverse": (lambda log, wrong: log.journal("t").read("k", reverse=wrong), [*NO_FLAG, None]),
    "read after": (lambda log, wrong: log.journal("t").read("k", after=wrong), NO_POSITION),
    "read strict": (lambda log, wrong: log.journal("t").read("k", strict=wrong), [*NO_FLAG, None]),
    "pages after": (lambda log, wrong: log.journal("t").read_pages("k", after=wrong), NO_POSITION),
    "pointer id": (lambda log, wrong: log.journal("t").pointer(wrong), [*TEXT, None]),
    "pointer after": (lambda log, wrong: log.journal("t").pointer("k", after=wrong), NO_POSITION),
    "pointer strict": (lambda log, wrong: log.journal("t").pointer("k", strict=wrong), [*NO_FLAG, None]),
    "delete id": (lambda log, wrong: log.journal("t").delete(wrong), [*TEXT, None]),
    "delete to": (lambda log, wrong: log.journal("t").delete("k", to=wrong), [*NO_WHOLE, 0, None]),
    "purge id": (lambda log, wrong: log.journal("t").purge(wrong), [*TEXT, None]),
    "mark id": (lambda log, wrong: log.journal("t").mark(wrong), [*TEXT, None]),
    "mark mark_id": (lambda log, wrong: log.journal("t").mark("k", wrong), TEXT),
    "recover id": (lambda log, wrong: log.journal("t").recover(wrong), [*TEXT, None]),
    "keys after": (lambda log, wrong: log.journal("t").keys(after=wrong), NO_POSITION),
    "head id": (lambda log, wrong: log.journal("t").head(wrong), [*TEXT, None]),
}
SNAPSHOTS: dict[str, tuple[Call, list[Any]]] = {
    "save id": (lambda log, wrong: snapshots(log).save(wrong, seq_nr=1, payload=1), [*TEXT, None]),
    "save seq_nr": (lambda log, wrong: snapshots(log).save("k", seq_nr=wrong, payload=1), [*NO_WHOLE, 0, None]),
    "save payload": (lambda log, wrong: snapshots(log).save("k", seq_nr=1, payload=wrong), [*NO_JSON, HALF]),
    "save metadata": (
        lambda log, wrong: snapshots(log).save("k", seq_nr=1, payload=1, metadata=wrong),
        [*NO_JSON, HALF],
    ),
    "load id": (lambda log, wrong: snapshots(log).load(wrong), [*TEXT, None]),
    "load criteria": (lambda log, wrong: snapshots(log).load("k", wrong), [5, None, "x", {}, object()]),
    "load after": (lambda log, wrong: snapshots(log).load("k", after=wrong), NO_POSITION),
    "list criteria": (lambda log, wrong: snapshots(log).list("k", wrong), [5, None, "x", {}, object()]),
    "delete seq_nr": (lambda log, wrong: snapshots(log).delete("k", seq_nr=wrong), [*NO_WHOLE, 0]),
    "delete criteria": (lambda log, wrong: snapshots(log).delete("k", criteria=wrong), [5, None, "x", {}, object()]),
    "Criteria": (lambda log, wrong: Criteria(max_seq_nr=wrong), [*NO_WHOLE, 0, None]),
    "Criteria time": (lambda log, wrong: Criteria(min_timestamp=wrong), [*NO_WHOLE, None]),
}
TAGS: dict[str, tuple[Call, list[Any]]] = {
    "tag": (lambda log, wrong: log.tag(wrong), [*TEXT, None, "a\0"]),
    "current after": (lambda log, wrong: log.tag("eu").current(after=wrong), [*NO_OFFSET, "t:0", "t:-1:0"]),
    "current since": (lambda log, wrong: log.tag("eu").current(since=wrong), NO_TIME),
    "current token": (lambda log, wrong: log.tag("eu").current(token=wrong), NO_POSITION),
    "live after": (lambda log, wrong: log.tag("eu").live(after=wrong), NO_OFFSET),
    "live since": (lambda log, wrong: log.tag("eu").live(since=wrong), NO_TIME),
    "live token": (lambda log, wrong: log.tag("eu").live(token=wrong), NO_POSITION),
    "drop topic": (lambda log, wrong: log.tag("eu").drop(topic=wrong), TEXT),
    "drop id": (lambda log, wrong: log.tag("eu").drop(journal_id=wrong), TEXT),
    "slices first": (lambda log, wrong: log.slices(wrong, 5), [*NO_WHOLE, 6, None]),
    "slices last": (lambda log, wrong: log.slices(0, wrong), [*NO_WHOLE, 1024, None]),
    "tags token": (lambda log, wrong: log.tags(token=wrong), NO_POSITION),
}
NO_CLASSES = [5, True, "x", b"x", object(), {}, [], [5], int, Reading, HALF, NAN]


@event("happened")
@dataclasses.dataclass
class Happened:
    at: float


class Thing(Aggregate, topic="t", events=Happened):
    def apply(self, event: Happened) -> None: ...


TYPES: dict[str, tuple[Call, list[Any]]] = {
    "journal types": (lambda log, wrong: log.journal("t", wrong), NO_CLASSES),
    "tag types": (lambda log, wrong: log.tag("eu", wrong), NO_CLASSES),
    "slices types": (lambda log, wrong: log.slices(0, 5, wrong), NO_CLASSES),
    "by id types": (lambda log, wrong: log.events_by_persistence_id("t", "k", types=wrong), NO_CLASSES),
    "type": (lambda log, wrong: log.journal("t").append("k", Event(1, type=wrong)), [*TEXT, "a\n"]),
    "type_version": (lambda log, wrong: log.journal("t").append("k", Event(1, type="x", type_version=wrong)), NO_WHOLE),
    "typed payload": (lambda log, wrong: log.journal("t", Happened).append("k", Event(Happened(wrong))), [NAN, HALF]),
    "load kind": (lambda log, wrong: log.load(wrong, "k"), NO_CLASSES),
    "load id": (lambda log, wrong: log.load(Thing, wrong), [*TEXT, None]),
    "update kind": (lambda log, wrong: log.update(wrong, "k", len), NO_CLASSES),
    "update id": (lambda log, wrong: log.update(Thing, wrong, str), [*TEXT, None]),
    "update retries": (lambda log, wrong: log.update(Thing, "new", str, retries=wrong), NO_COUNT),
}
EVERLOG: dict[str, tuple[Call, list[Any]]] = {
    "status after": (lambda log, wrong: log.status(after=wrong), NO_POSITION),
    "by id topic": (lambda log, wrong: log.events_by_persistence_id(wrong, "k"), [*TEXT, None]),
    "by id id": (lambda log, wrong: log.events_by_persistence_id("t", wrong), [*TEXT, None]),
    "by id from": (lambda log, wrong: log.events_by_persistence_id("t", "k", wrong), [*NO_WHOLE, None]),
    "by id to": (lambda log, wrong: log.events_by_persistence_id("t", "k", 0, wrong), [*NO_WHOLE, 0, None]),
    "by id live": (lambda log, wrong: log.events_by_persistence_id("t", "k", live=wrong), [*NO_FLAG, None]),
    "by id gap_free": (lambda log, wrong: log.events_by_persistence_id("t", "k", gap_free=wrong), [*NO_FLAG, None]),
    "ids topic": (lambda log, wrong: log.persistence_ids(wrong), [*TEXT, None]),
    "ids live": (lambda log, wrong: log.persistence_ids("t", live=wrong), [*NO_FLAG, None]),
    "retire topic": (lambda log, wrong: log.retire(wrong), [*TEXT, None]),
    "retire force": (lambda log, wrong: log.retire("t", force=wrong), [*NO_FLAG, None]),
    "expire day": (lambda log, wrong: log.expire(day=wrong), [5, "2026-01-01", datetime.now(UTC), NAN, object(), True]),
    "expire topics": (lambda log, wrong: log.expire(topics=wrong), [5, "t", [5], [HALF], [""], object(), True]),
    "quarantine list": (lambda log, wrong: log.quarantine.list(wrong), TEXT),
    "quarantine show topic": (lambda log, wrong: log.quarantine.show(wrong, 0, 0), [*TEXT, None]),
    "quarantine show partition": (lambda log, wrong: log.quarantine.show("t", wrong, 0), [*NO_WHOLE, None]),
    "quarantine show offset": (lambda log, wrong: log.quarantine.show("t", 0, wrong), [*NO_WHOLE, None]),
    "quarantine retry topic": (lambda log, wrong: log.quarantine.retry(wrong, "k"), [*TEXT, None]),
    "quarantine retry id": (lambda log, wrong: log.quarantine.retry("t", wrong), [*TEXT, None]),
    "quarantine skip offset": (lambda log, wrong: log.quarantine.skip("t", "k", wrong), NO_WHOLE),
    "Position": (lambda log, wrong: log.status(after=Position("t", wrong, wrong)), [*NO_WHOLE, None]),
    "Position topic": (lambda log, wrong: log.status(after=Position(wrong, 0, 0)), [*TEXT, None]),
}
PROJECTIONS: dict[str, tuple[Call, list[Any]]] = {
    "list": (lambda log, wrong: log.projections.list(wrong), TEXT),
    "get name": (lambda log, wrong: log.projections.get(wrong), [*TEXT, None]),
    "get key": (lambda log, wrong: log.projections.get("p", wrong), TEXT),
    "offset": (lambda log, wrong: log.projections.offset(wrong), [*TEXT, None]),
    "set name": (lambda log, wrong: log.projections.set(wrong, "k", 1), [*TEXT, None]),
    "clear name": (lambda log, wrong: log.projections.clear(wrong), [*TEXT, None]),
    "pause name": (lambda log, wrong: log.projections.pause(wrong), [*TEXT, None]),
    "pause wait_s": (lambda log, wrong: log.projections.pause("p", "k", wait_s=wrong), NO_SECONDS),
    "resume name": (lambda log, wrong: log.projections.resume(wrong), [*TEXT, None]),
    "resume wait_s": (lambda log, wrong: log.projections.resume("p", "k", wait_s=wrong), NO_SECONDS),
    "skip name": (lambda log, wrong: log.projections.skip(wrong), [*TEXT, None]),
    "skip offset": (lambda log, wrong: log.projections.skip("p", "k", offset=wrong), TEXT),
    "dead_letters": (lambda log, wrong: log.projections.dead_letters(wrong), [*TEXT, None]),
    "dead_letters limit": (lambda log, wrong: log.projections.dead_letters("p", limit=wrong), [*NO_WHOLE, 0]),
    "replay offset": (lambda log, wrong: log.projections.replay("p", "k", offset=wrong), TEXT),
    "forget offset": (lambda log, wrong: log.projections.forget("p", "k", offset=wrong), TEXT),
    "wait name": (lambda log, wrong: log.projections.wait(wrong, "t:0:0"), [*TEXT, None]),
    "wait token": (lambda log, wrong: log.projections.wait("p", wrong), [*NO_POSITION, None]),
    "wait seconds": (lambda log, wrong: log.projections.wait("p", "t:0:0", seconds=wrong), NO_SECONDS),
    "copies": (lambda log, wrong: log.projections.copies(wrong), [*TEXT, None]),
    "switch": (lambda log, wrong: log.projections.switch(wrong), [*TEXT, None]),
    "switch back": (lambda log, wrong: log.projections.switch("p", back=wrong), [*NO_FLAG, None]),
    "abort": (lambda log, wrong: log.projections.abort(wrong), [*TEXT, None]),
}
GROUPS = {
    "journals": JOURNALS,
    "snapshots": SNAPSHOTS,
    "tags": TAGS,
    "types": TYPES,
    "everlog": EVERLOG,
    "projections": PROJECTIONS,
}


def snapshots(log: Any) -> Any:
    return log.journal("t").snapshots


async def use(found: Any) -> Any:
    """The answer of a call, whatever it hands out."""
    if inspect.isawaitable(found):
        return await found
    if isinstance(found, AsyncIterator):
        return [one async for one in found]
    return found


def use_now(call: Call, log: Any, wrong: Any) -> Any:
    found = call(log, wrong)
    return list(found) if isinstance(found, Iterator) else found


@asynccontextmanager
async def opened(way: str, folder: Path) -> AsyncIterator[tuple[Everlog, Callable[[Call, Any], Any]]]:
    """A log with a journal, and how to call it in this way."""
    async with connect(small_config(folder)) as local:
        await local.journal("t").append("k", [Event(1, tags={"eu"}), Event(2)])
        await local.journal("t").snapshots.save("k", seq_nr=1, payload="s")
        await replicate(local)
        if way == "embedded":

            async def call(function: Call, wrong: Any) -> Any:
                return await use(function(local, wrong))

            yield local, call
        elif way == "twin":
            with sync.connect(small_config(folder)) as twin:
                yield local, lambda function, wrong: asyncio.to_thread(use_now, function, twin, wrong)
        else:
            async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:

                async def call(function: Call, wrong: Any) -> Any:
                    return await use(function(remote, wrong))

                yield local, call


async def content(log: Everlog) -> tuple[Any, ...]:
    """All that wrong calls must not change."""
    journal = log.journal("t")
    events = [event async for event in journal.read("k")]
    kept = await journal.snapshots.list("k")
    return await log.topics(), sum(one.end for one in (await log.status()).partitions), events, kept


@pytest.mark.parametrize("way", ["embedded", "twin", "http"])
@pytest.mark.parametrize("group", GROUPS)
async def test_a_wrong_argument_is_an_error_of_ours(tmp_path, group, way) -> None:
    """Each call with each wrong value. What a server does not hand out says so, which is an error of ours, too."""
    async with opened(way, tmp_path) as (log, call):
        before = await content(log)
        wrong_answers = []
        for name, (function, values) in GROUPS[group].items():
            for value in values:
                shown = f"{name} {type(value).__name__}"
                try:
                    answer = await asyncio.wait_for(call(function, value), 30)
                except EverlogError as error:
                    if not isinstance(error, InvalidInput) and (way != "http" or str(error) != str(needs_storage())):
                        wrong_answers.append((shown, ascii(value)[:40] if value is not HUGE else "", ascii(error)))
                    continue
                except BaseException as error:
                    answer = error
                wrong_answers.append((shown, "" if value is HUGE else ascii(value)[:40], ascii(answer)[:200]))
        assert wrong_answers == []
        assert await content(log) == before
        await log.journal("t").append("k", Event(3), expected=2)


class Name(str):
    """Text of a class of its own, as libraries hand it out."""

    __slots__ = ()


class Amount(float):
    """A number of a class of its own."""


@pytest.mark.parametrize("way", ["embedded", "http"])
async def test_text_and_numbers_of_other_classes_are_what_they_are(tmp_path, way) -> None:
    async with opened(way, tmp_path) as (_, call):

        async def say(log: Everlog, name: str) -> None:
            journal = log.journal("t")
            await journal.append(Name("n"), Event(Name("x"), tags=[Name("eu")], type=Name("kind")))
            await journal.append(
                "n",
                Event({"a": Name("x"), "b": Amount(1.5)}),
                headers={Name("h"): Name("v")},
                metadata=Name("m"),
            )
            await journal.mark("n", Name("mark"))
            await journal.snapshots.save("n", seq_nr=2, payload=Name("state"))
            first, second = [event async for event in journal.read("n")]
            assert (first.payload, first.tags, first.event_type) == ("x", {"eu"}, ("kind", 1))
            assert (second.payload, second.headers, second.metadata["payload"]) == (
                {"a": "x", "b": 1.5},
                {"h": "v"},
                {"data": "m"},
            )
            kept = await journal.snapshots.load("n")
            assert kept is not None
            assert kept.payload == "state"

        await call(say, "")


@pytest.mark.parametrize("way", ["embedded", "http"])
async def test_a_wrong_append_harms_no_other(tmp_path, way) -> None:
    """Ten appends that would share its commit are stored."""
    async with opened(way, tmp_path) as (_, call):
        wrong = [append(headers=...), append(metadata=...), append(idempotency_key=..., expected=2)]
        calls = [call(function, {HALF: "x"}) for function in wrong]
        calls += [
            call(lambda log, number: log.journal("t").append(f"other-{number}", Event(number)), number)
            for number in range(10)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, InvalidInput) for answer in answers[:3])
        assert [str(answer.range.first) for answer in answers[3:]] == ["1"] * 10


@pytest.mark.parametrize("way", ["embedded", "http"])
async def test_the_limit_is_the_same_on_every_stack(tmp_path, way) -> None:
    """128 levels go in and come out, 129 do not, for callers with little room left on the stack, too."""
    async with opened(way, tmp_path) as (log, call):
        deepest, payload = nested(MAX_DEPTH), Json(nested(MAX_DEPTH, "x"))

        async def append_with(room: int, journal_id: str, payload: Any, metadata: Any) -> Any:
            def appending(log: Any, _: Any) -> Any:
                return log.journal("t").append(
                    journal_id, Event(payload), metadata=metadata, header_metadata=metadata, expected=0
                )

            return await called_at_depth(room, call(appending, None))

        for room in (900, 100):
            await append_with(room, f"deep-{room}", payload, deepest)
            for wrong in ((nested(MAX_DEPTH + 1), None), (1, nested(MAX_DEPTH + 1)), (nested(700), None)):
                with pytest.raises(InvalidInput, match="128 levels"):
                    await append_with(room, f"deeper-{room}", *wrong)
            (event,) = await call(lambda log, _, room=room: log.journal("t").read(f"deep-{room}"), None)
            assert event.payload == payload.value
            assert event.metadata["header"]["data"] == event.metadata["payload"]["data"] == deepest
            assert await log.journal("t").pointer(f"deeper-{room}") is None


async def called_at_depth(room: int, awaitable: Any) -> Any:
    """Await with so much room left on the stack, give or take."""
    return await _descend(sys.getrecursionlimit() - len(inspect.stack(0)) - room, awaitable)


async def _descend(levels: int, awaitable: Any) -> Any:
    return await awaitable if levels <= 0 else await _descend(levels - 1, awaitable)


async def put_deep(log: Everlog, journal_id: str, deep: bytes) -> bytes:
    """A record as another program would write it, its JSON this deep; returns the column of its metadata."""
    header = b'{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":{"data":%b}}}' % deep
    value = b'{"events":[{"seqNr":1,"payload":%b,"payloadType":"json"}],"metadata":{"data":%b}}' % (deep, deep)
    ref = await log.journal("t").ref(journal_id, create=True)
    assert ref is not None
    await produce_raw(log, "t", Record(ref.partition, 0, START_MS, ref.key, header, value))
    return b'{"header":{"data":%b},"payload":{"data":%b}}' % (deep, deep)


@pytest.mark.parametrize("way", ["embedded", "http"])
async def test_deep_metadata_of_others_halts_no_journal(tmp_path, way) -> None:
    """940 levels, and many more: the record counts and is read; what Python cannot show is an error for who looks."""
    async with opened(way, tmp_path) as (log, call):
        for levels in (940, 20_000):
            deep, journal_id = b"[" * levels + b"]" * levels, f"deep-{levels}"
            column = await put_deep(log, journal_id, deep)

            async def reading(journal_id: str = journal_id) -> Any:
                return await call(lambda log, _: log.journal("t").read(journal_id), None)

            for replicated in (False, True):
                if replicated:
                    await replicate(log)
                for room in (900, 150):
                    (event,) = await called_at_depth(room, reading())
                    assert (event.data.encode() == deep, event.metadata_json.encode() == column) == (True, True)
                    with pytest.raises(UnreadableJson):
                        at_depth(room, lambda event=event: event.metadata)
            await call(lambda log, _, key=journal_id: log.journal("t").append(key, Event(2), expected=1), None)


def test_ids_of_appends_that_are_accepted() -> None:
    for sound in ("1.x", f"{MAX_SEQ_NR}.a-b_c", "7.key:1~2.3"):
        check_append_id(sound)
    check_append_id(None)
