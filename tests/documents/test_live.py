"""Live queries: what a client knows at a position is what the naive query says at that revision."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config, DocumentsConfig
from everlog.documents import body_cache, live_feed, live_query, transitions
from everlog.documents.api import Documents
from everlog.documents.live_change import LiveChange, LiveFilter
from everlog.documents.live_feed import LiveFeed
from everlog.documents.transitions import TransitionReader
from everlog.errors import (
    DocumentConflict,
    FilterTooExpensive,
    InvalidDocument,
    InvalidPosition,
    QueryLimited,
    StorageFailed,
)
from everlog.wire.errors import code_of
from tests.documents.live_support import CollectionModel, LiveClient, Step
from tests.support import small_config

URI = "c~"
FILTERS = ["", "n >= 2", "n < 2 or m = 1", 'id > "b"', "n + m > 2"]

items = st.sampled_from("abcdef")
values = st.dictionaries(st.sampled_from("nm"), st.integers(0, 3) | st.none(), max_size=2)
puts = st.tuples(st.just("put"), items, values)
patches = st.tuples(st.just("patch"), items, values)
deletes = st.tuples(st.just("delete"), items, st.none())
whole = st.tuples(st.sampled_from(["clear", "create"]), st.just(""), st.none())
batches = st.tuples(st.just("batch"), st.just(""), st.lists(st.tuples(items, values), min_size=1, max_size=4))
writes = st.lists(st.one_of(puts, puts, patches, patches, deletes, whole, batches), max_size=5)
# What is written between the pages of a scan and whenever a client was cut, and after how many steps it is cut.
scripts = st.lists(writes, max_size=6)
cuts = st.lists(st.integers(0, 6), max_size=3)


def config_of(folder: Path, **changed: Any) -> Config:
    return msgspec.structs.replace(small_config(folder), documents=DocumentsConfig(**changed))


class Paused:
    """A store whose scans stop behind each page, for the next writes of a script."""

    def __init__(self, docs: Documents, model: CollectionModel, script: list[list[Step]]) -> None:
        self._docs = docs
        self._model = model
        self.script = script

    async def go_on(self) -> None:
        for step in self.script.pop(0) if self.script else []:
            await self._model.write(self._docs, step)

    def hold(self, store: Any, *, forgetful: bool) -> None:
        read, find = store.elements_after, store.transaction

        async def elements_after(*arguments: Any, **options: Any) -> Any:
            found = await read(*arguments, **options)
            await self.go_on()
            return found

        async def transaction(wanted: Any) -> Any:
            """As after a week: the row is no longer there."""
            found = await find(wanted)
            return None if forgetful and found is not None and found.completed_ms is not None else found

        store.elements_after, store.transaction = elements_after, transaction


async def follow(
    first: list[Step], script: list[list[Step]], cut: list[int], condition: str, logs: list[Everlog], forgetful: bool
) -> None:
    model = CollectionModel(URI)
    writer = logs[0].documents
    for step in first:
        await model.write(writer, step)
    paused = Paused(writer, model, script)
    for log in logs:
        paused.hold((await log.documents.open()).store, forgetful=forgetful)
    client = LiveClient(model, condition)
    async with asyncio.timeout(60):
        for turn, steps in enumerate([*cut, 10**9]):
            docs = logs[turn % len(logs)].documents
            async with contextlib.aclosing(docs.live(URI, filter=condition, after=client.position)) as changes:
                for _ in range(steps):
                    while paused.script and client.has(model.revision):
                        await paused.go_on()
                        await writer.settle(URI)
                    if client.has(model.revision):
                        break
                    client.take(await anext(changes))
    assert client.elements == model.matching(condition, model.revision)
    present = [one["id"] for one in (await writer.list(URI, filter=condition)).elements] if model.states[-1] else []
    assert sorted(client.elements) == sorted(present)


async def run(*script: Any, forgetful: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(Path(folder) / "data", feed_poll_interval_s=0.01)
        async with connect(config) as one, connect(config) as other:
            await follow(*script, [one, other], forgetful)


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(live_query, "SCAN_ROWS", 2)
    monkeypatch.setattr(transitions, "PAGE", 3)
    monkeypatch.setattr(body_cache, "MAX_BODIES", 2)
    monkeypatch.setattr(live_feed, "MAX_KEPT", 4)


@settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(puts, max_size=8), scripts, cuts, st.sampled_from(FILTERS), st.booleans())
def test_a_client_always_knows_what_the_naive_query_says(small_pages, first, script, cut, condition, forgetful):
    """Writes between the pages of the scan and between any two steps, streams cut anywhere, two servers by turns."""
    asyncio.run(run(first, script, cut, condition, forgetful=forgetful))


@pytest.fixture
async def log(tmp_path, clock) -> AsyncIterator[Everlog]:
    async with connect(config_of(tmp_path / "data", max_live_elements=3, max_history=20), clock=clock) as log:
        yield log


@pytest.fixture
def docs(log: Everlog) -> Documents:
    return log.documents


async def take(docs: Documents, upto: int, **options: Any) -> list[LiveChange]:
    """All steps up to a revision, without checkpoints: how many of these there are is a matter of time."""
    found: list[LiveChange] = []
    async with asyncio.timeout(60), contextlib.aclosing(docs.live(URI, **options)) as changes:
        async for change in changes:
            if change.kind != "checkpoint":
                found.append(change)
            if change.position is not None and change.revision >= upto:
                return found
    raise AssertionError("a live query ended")


def short(changes: list[LiveChange]) -> list[Any]:
    return [(one.kind, one.id) if one.id else one.kind for one in changes]


async def test_the_present_then_what_enters_changes_and_leaves(docs: Documents) -> None:
    await docs.put(f"{URI}/a", {"n": 1})
    await docs.put(f"{URI}/b", {"n": 2})
    present = await take(docs, 2, filter="n > 1")
    assert short(present) == ["reset", ("present", "b"), "complete"]
    assert (present[1].body, present[1].position) == ({"n": 2, "id": "b"}, None)
    await docs.patch(f"{URI}/a", {"n": 5})
    await docs.patch(f"{URI}/a", {"m": 1})
    await docs.put(f"{URI}/a", {"n": 0})
    await docs.put(f"{URI}/c", {"n": 0})
    await docs.delete(f"{URI}/b")
    await docs.delete(URI)
    await docs.put(f"{URI}/a", {"n": 9})
    changes = await take(docs, 9, filter="n>1", after=present[-1].position)
    assert short(changes) == [
        ("entered", "a"),
        ("changed", "a"),
        ("left", "a"),
        ("left", "b"),
        "reset",
        ("entered", "a"),
    ]
    assert changes[1].body == {"n": 5, "m": 1, "id": "a"}
    assert [one.revision for one in changes] == [3, 4, 5, 7, 8, 9]
    assert short(await take(docs, 9, filter="n > 1", after=changes[3].position)) == short(changes[4:])
    everything = await take(docs, 9)
    assert short(everything) == ["reset", ("present", "a"), "complete"]


async def test_a_collection_that_is_not_there_is_empty(docs: Documents) -> None:
    assert short(await take(docs, 0)) == ["reset", "complete"]
    await docs.put(f"{URI}/a", {})
    await docs.delete(URI)
    assert short(await take(docs, 2)) == ["reset", "complete"]


async def test_what_changes_while_it_is_read(docs: Documents, monkeypatch) -> None:
    """Behind the first row: one that was read and one that was not are changed, deleted and made."""
    monkeypatch.setattr(live_query, "SCAN_ROWS", 1)
    model = CollectionModel(URI)
    for item in "abc":
        await model.write(docs, ("put", item, {"n": 1}))
    paused = Paused(
        docs,
        model,
        [[("delete", "a", None), ("delete", "b", None), ("patch", "c", {"n": 0}), ("put", "d", {"n": 1})]],
    )
    paused.hold((await docs.open()).store, forgetful=False)
    found = await take(docs, 7, filter="n > 0")
    assert short(found) == [
        "reset",
        ("present", "a"),
        ("present", "b"),
        ("present", "c"),
        "complete",
        ("left", "a"),
        ("left", "b"),
        ("left", "c"),
        ("entered", "d"),
    ]
    assert found[3].body == {"n": 1, "id": "c"}
    assert found[4].revision == 3


async def test_a_collection_that_is_deleted_while_it_is_read(docs: Documents, monkeypatch) -> None:
    monkeypatch.setattr(live_query, "SCAN_ROWS", 1)
    model = CollectionModel(URI)
    for item in "ab":
        await model.write(docs, ("put", item, {}))
    paused = Paused(docs, model, [[("clear", "", None), ("put", "c", {}), ("put", "b", {})]])
    paused.hold((await docs.open()).store, forgetful=False)
    found = await take(docs, 5)
    assert short(found) == ["reset", ("present", "a"), "reset", "complete", ("entered", "c"), ("entered", "b")]
    assert found[3].revision == 3


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"filter": "n >"}, InvalidDocument, "invalid-filter"),
        ({"filter": "n > unix_time()"}, InvalidDocument, "invalid-filter"),
        ({"after": "7"}, InvalidPosition, "invalid-position"),
        ({"after": "1-0123456789ab"}, InvalidDocument, "position-of-another-query"),
        ({"filter": "n > 2", "after": "own"}, InvalidDocument, "position-of-another-query"),
    ],
)
async def test_what_is_refused(docs: Documents, options: dict[str, str], error: Any, code: str) -> None:
    await docs.put(f"{URI}/a", {"n": 1})
    if options.get("after") == "own":
        options = options | {"after": str((await take(docs, 1, filter="n > 1"))[-1].position)}
    with pytest.raises(error) as caught:
        await take(docs, 1, **options)
    assert code_of(caught.value) == code


async def test_a_position_beyond_the_end_is_refused(docs: Documents, tmp_path, clock) -> None:
    for _ in range(3):
        await docs.put(f"{URI}/a", {})
    position = (await take(docs, 3))[-1].position
    async with connect(small_config(tmp_path / "other"), clock=clock) as other:
        with pytest.raises(DocumentConflict) as caught:
            await take(other.documents, 1, after=position)
    assert (caught.value.code, caught.value.facts) == ("position-beyond-end", {"revision": 0})
    with pytest.raises(InvalidPosition):
        await take(docs, 1, after=str(position).replace("3-", "-3-"))


async def test_too_many_matches_are_refused(docs: Documents) -> None:
    for item in "abcd":
        await docs.put(f"{URI}/{item}", {"n": item})
    assert len(await take(docs, 4, filter='n > "a"')) == 5
    with pytest.raises(QueryLimited) as caught:
        await take(docs, 4)
    assert caught.value.code == "live-too-large"


async def test_a_filter_over_its_budget_ends_the_query(tmp_path, clock) -> None:
    """At the beginning, and at a change."""
    limits = {"max_query_steps": 1000, "max_element_steps": 200}
    async with connect(config_of(tmp_path / "data", **limits), clock=clock) as log:
        docs = log.documents
        await docs.put(f"{URI}/a", {"n": 1, "list": []})
        await docs.settle(URI)
        begun = docs.live(URI, filter="list has 1")
        assert short([await anext(begun) for _ in range(2)]) == ["reset", "complete"]
        await docs.put(f"{URI}/a", {"n": 1, "list": list(range(1000, 2000))})
        with pytest.raises(FilterTooExpensive):
            await anext(begun)
        await docs.delete(f"{URI}/a")
        for n in range(300):
            await docs.put(f"{URI}/{n}", {"n": n})
        with pytest.raises(FilterTooExpensive, match="max_query_steps"):
            await take(docs, 300, filter="n > 1000")


async def test_a_position_of_long_ago(docs: Documents) -> None:
    """Without its row in the outbox, what an element was follows from the history; as far back as that may be read."""
    await docs.put(f"{URI}/a", {"n": 1})
    position = (await take(docs, 1))[-1].position
    for n in range(8):
        await docs.put(f"{URI}/b", {"n": n})
    await docs.patch(f"{URI}/a", {"n": 2})
    await docs.settle(URI)
    parts = await docs.open()
    assert await parts.store.forget(10**15) == 10
    changes = await take(docs, 10, after=position)
    assert short(changes) == [("entered", "b"), *[("changed", "b")] * 7, ("changed", "a")]
    for n in range(20):
        await docs.patch(f"{URI}/a", {"n": n})
    position = (await take(docs, 30, after=changes[-1].position))[-1].position
    await docs.delete(f"{URI}/a")
    await docs.settle(URI)
    await parts.store.forget(10**15)
    with pytest.raises(DocumentConflict) as caught:
        await take(docs, 31, after=position)
    assert caught.value.code == "position-too-old"


async def test_followers_share_one_reader(docs: Documents, monkeypatch) -> None:
    """Each change is read once, and evaluated once for each filter; the reader ends with its last follower."""
    read, evaluated = [0], [0]
    transition, change = TransitionReader._transition, LiveFilter.change

    def counted(self: Any, *arguments: Any) -> Any:
        read[0] += 1
        return transition(self, *arguments)

    async def asked(self: Any, *arguments: Any) -> Any:
        evaluated[0] += 1
        return await change(self, *arguments)

    monkeypatch.setattr(TransitionReader, "_transition", counted)
    monkeypatch.setattr(LiveFilter, "change", asked)
    model = CollectionModel(URI)
    clients = [LiveClient(model, condition) for condition in FILTERS[:4] for _ in range(50)]
    begun = [asyncio.Event() for _ in clients]

    async def run_one(client: LiveClient, ready: asyncio.Event) -> None:
        async with contextlib.aclosing(docs.live(URI, filter=client.condition)) as changes:
            async for one in changes:
                client.take(one)
                if client.position is not None:
                    ready.set()
                if client.has(20):
                    return

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for client, ready in zip(clients, begun, strict=True):
            group.create_task(run_one(client, ready))
        for ready in begun:
            await ready.wait()
        for n in range(20):
            await model.write(docs, ("put", "abc"[n % 3], {"n": n % 5}))
    assert (read, evaluated) == ([20], [80])
    assert (await docs.open()).live._feeds == {}


async def test_a_filter_that_is_too_expensive_ends_its_own_query_only(docs: Documents) -> None:
    """With its reason, whether it meets the element at the beginning or as a change."""
    expensive = 's"' + "${a}" * 90 + '" = "x"'
    changes, others = docs.live(URI, filter=expensive), docs.live(URI, filter="n = 1")
    for stream in (changes, others):
        assert [(await anext(stream)).kind, (await anext(stream)).kind] == ["reset", "complete"]
    await docs.put(f"{URI}/x", {"n": 1, "a": ["x" * 100] * 5000})
    for stream in (changes, docs.live(URI, filter=expensive)):
        with pytest.raises(FilterTooExpensive):
            async for _ in stream:
                pass
    assert [one.kind async for one in _first(others, 1)] == ["entered"]


async def _first(stream: Any, count: int) -> AsyncIterator[LiveChange]:
    async with contextlib.aclosing(stream):
        for _ in range(count):
            yield await anext(stream)


async def test_a_defect_of_the_reader_ends_its_queries(docs: Documents, monkeypatch) -> None:
    await docs.put(f"{URI}/a", {})
    changes = docs.live(URI)
    assert short([await anext(changes) for _ in range(3)])[-1] == "complete"

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(LiveFeed, "_keep", broken)
        await docs.put(f"{URI}/b", {})
        with pytest.raises(StorageFailed):
            await anext(changes)
    assert short(await take(docs, 2))[-1] == "complete"
