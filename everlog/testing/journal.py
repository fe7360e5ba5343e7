"""What every journal must do, on whatever log and store: the public outcomes, however far replication is."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from everlog.api import Everlog
from everlog.core.duration import HOUR_MS, utc_day
from everlog.core.events import Event
from everlog.core.values import Position
from everlog.errors import (
    Conflict,
    InvalidInput,
    InvalidPosition,
    JournalHalted,
    JournalNotFound,
    SnapshotTooLarge,
)
from everlog.journal.aggregate import Aggregate
from everlog.testing.journal_doors import JournalDoors
from everlog.testing.journal_lives import JournalLives
from everlog.testing.journal_support import (
    ALL_CONDITIONS,
    BROKEN,
    CONDITIONS,
    CONTRACT_CONDITIONS,
    OUTCOMES,
    TRIMMED,
    events,
    keys,
    produce,
    read,
    read_events,
    read_until_halted,
)
from everlog.testing.matrix import matrix, part_of_matrix, whole_matrix
from everlog.testing.replication import replicate


class Total(Aggregate, topic="totals", snapshot_every=3):
    """Adds up."""

    sum: int = 0

    def apply(self, event: dict[str, int]) -> None:
        self.sum += event["by"]


class JournalConformance(JournalLives, JournalDoors):
    """Subclass it and provide the fixture `everlog`: open, empty, with small segments and pages if it can be.

    Override `trim` if records that are replicated can be removed from the log. With `whole = False` a matrix runs in a
    part that has all pairs of its values (for backends that take long, and whose parts pass their own suites).
    """

    pytestmark = pytest.mark.asyncio
    whole = True

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        dimensions = getattr(metafunc.function, "matrix", None)
        if dimensions is not None:
            cells = whole_matrix(dimensions) if self.whole else part_of_matrix(dimensions)
            metafunc.parametrize(tuple(dimensions), cells)

    async def trim(self, everlog: Everlog) -> None:
        """Remove all replicated records from the log."""
        pytest.skip("this log cannot be trimmed")

    async def settle(self, everlog: Everlog, condition: str) -> None:
        if condition == TRIMMED:
            await replicate(everlog)
            await self.trim(everlog)
        else:
            await CONDITIONS[condition](everlog)

    @matrix(history=OUTCOMES, condition=ALL_CONDITIONS)
    async def test_outcomes(self, everlog: Everlog, history: str, condition: str) -> None:
        """Reads and pointers are the same however far replication is, after every step and at the end."""
        steps, expected, pointer = OUTCOMES[history]
        for when in ("at the end", "after every step"):
            journal = everlog.journal(when.replace(" ", "-"))
            for step in steps:
                await step(journal)
                if when == "after every step":
                    await self.settle(everlog, condition)
            await self.settle(everlog, condition)
            assert await read(journal) == expected
            assert await read(journal, reverse=True) == expected[::-1]
            assert await journal.pointer("k") == pointer
            assert await keys(journal) == ([] if pointer is None else ["k"])
            for first in range(1, 8):
                for last in range(first, 8):
                    wanted = [n for n in expected if first <= n <= last]
                    assert await read(journal, from_seq=first, to_seq=last) == wanted
                    assert await read(journal, from_seq=first, to_seq=last, reverse=True) == wanted[::-1]

    async def test_delete_of_nothing_writes_nothing(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        await journal.append("other", Event(1))
        before = await everlog.status()
        assert await journal.delete("k") is None
        assert [p.end for p in (await everlog.status()).partitions] == [p.end for p in before.partitions]

    @matrix(condition=CONTRACT_CONDITIONS, size=[0, 1, 2, 5, 10], first=[1, 5, 10], how=["batched", "one by one"])
    async def test_contract(self, everlog: Everlog, condition: str, size: int, first: int, how: str) -> None:
        """Append, append more, delete to each seqNr, delete then append, delete twice, read from each, pointer."""
        journal = everlog.journal("t")
        batched = how == "batched"
        numbers = list(range(first, first + size))

        async def add(journal_id: str, wanted: Sequence[int]) -> None:
            for part in [wanted] if batched and wanted else [[number] for number in wanted]:
                await journal.append(journal_id, [Event(number, seq_nr=number) for number in part])

        async def check(journal_id: str, wanted: list[int], pointer: int | None) -> None:
            await self.settle(everlog, condition)
            assert await read(journal, journal_id) == wanted
            assert await journal.pointer(journal_id) == pointer

        last = numbers[-1] if numbers else None
        await add("read", numbers)
        await check("read", numbers, last)
        for number in range(1, first + size + 1):
            assert await read(journal, "read", from_seq=number) == [n for n in numbers if n >= number]
        following = first + size
        for to in [*numbers, following]:
            journal_id = f"delete-{to}"
            await add(journal_id, numbers)
            await journal.delete(journal_id, to=to)
            await check(journal_id, [n for n in numbers if n > to], last)
            await journal.delete(journal_id, to=to)
            await add(journal_id, [following])
            await check(journal_id, [n for n in [*numbers, following] if n > to or n == following], following)
            await add(journal_id, [following + 1])
            await check(journal_id, [*[n for n in numbers if n > to], following, following + 1], following + 1)

    async def test_a_token_is_seen_at_once_by_another_reader(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        for number in range(1, 6):
            token = await journal.append("k", Event(number))
            assert token.range == (number, number)
            assert await read(journal, after=token) == list(range(1, number + 1))
            assert await read(journal, after=str(token)) == list(range(1, number + 1))
            if number == 3:
                await replicate(everlog)

    async def test_a_token_of_no_partition_is_refused(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        token = await journal.append("k", Event(1))
        for wrong in (Position("t", 10_000, 0), "t:10000:0"):
            for call in (read(journal, after=wrong), journal.pointer("k", after=wrong), keys(journal, after=wrong)):
                with pytest.raises(InvalidPosition):
                    await call
        assert await keys(journal, after=token) == ["k"]

    async def test_a_strict_read_goes_beyond_a_mark_of_its_own(self, everlog: Everlog) -> None:
        """It sees what a plain read sees, and leaves one record behind that changes nothing."""
        journal = everlog.journal("t")
        token = await journal.append("k", events(1, 3))
        ref = await journal.ref("k")
        assert ref is not None
        for strict in (False, True):
            end = await everlog.parts.log.end(ref.log_topic, token.partition)
            found = [event.seq_nr async for event in journal.read("k", strict=strict, after=token)]
            assert found == [1, 2, 3]
            assert await everlog.parts.log.end(ref.log_topic, token.partition) == end + strict
        assert await journal.pointer("k", strict=True) == 3
        assert await journal.pointer("other", strict=True) is None

    @pytest.mark.parametrize("condition", ALL_CONDITIONS)
    async def test_the_first_of_two_expected_appends_wins(self, everlog: Everlog, condition: str) -> None:
        journal = everlog.journal("t")
        await journal.append("k", events(1, 3))
        await self.settle(everlog, condition)
        results = await asyncio.gather(
            *(journal.append("k", Event(at), expected=3) for at in range(5)), return_exceptions=True
        )
        lost = [result for result in results if isinstance(result, Conflict)]
        assert len(lost) == 4
        assert {(conflict.expected, conflict.actual) for conflict in lost} == {(3, 4)}
        await self.settle(everlog, condition)
        assert await read(journal) == [1, 2, 3, 4]
        with pytest.raises(Conflict):
            await journal.append("k", events(4, 5))
        assert await journal.pointer("k") == 4

    async def test_appends_without_numbers_all_count(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        tokens = await asyncio.gather(*(journal.append("k", [Event(at), Event(at)]) for at in range(20)))
        assert sorted(token.range.first for token in tokens) == list(range(1, 41, 2))
        await replicate(everlog)
        assert await read(journal) == list(range(1, 41))

    @pytest.mark.parametrize("condition", ALL_CONDITIONS)
    async def test_everything_given_comes_back(self, everlog: Everlog, condition: str) -> None:
        """Text, JSON, binary and none, alone and mixed; tags, metadata, headers; a hundred events in one append."""
        journal = everlog.journal("t")
        payloads: list[Any] = ["text", {"k": [1, None]}, b"\x00\xff", None, ""]
        await journal.append(
            "k",
            [Event(payload, tags={"a", f"t{at}"}) for at, payload in enumerate(payloads)],
            metadata={"m": 1},
            header_metadata={"h": 2},
            headers={"name": "ü"},
        )
        await journal.append("k", [Event(n) for n in range(100)])
        await self.settle(everlog, condition)
        found = await read_events(journal)
        assert [event.payload for event in found] == [*payloads, *range(100)]
        assert [event.tags for event in found[:5]] == [frozenset({"a", f"t{at}"}) for at in range(5)]
        assert {str(event.metadata) for event in found[:5]} == {
            str({"header": {"data": {"h": 2}}, "payload": {"data": {"m": 1}}})
        }
        assert found[0].headers == {"name": "ü"}
        assert found[5].headers == {}

    @pytest.mark.parametrize("condition", ["store empty", "all replicated", "one behind"])
    async def test_every_event_has_its_own_type(self, everlog: Everlog, condition: str) -> None:
        """Of one append, with and without bytes in it; the user's metadata stands next to them."""
        journal, types = everlog.journal("t"), [("placed", 2), (None, None), ("päid", 1)]
        for payload in ({"k": 1}, b"\x00"):
            new = [Event(payload, type=name, type_version=version) for name, version in types]
            await journal.append("k", new, metadata={"m": 1})
        await self.settle(everlog, condition)
        found = await read_events(journal)
        assert [(event.type, event.type_version) for event in found] == types * 2
        assert {str(event.metadata["payload"]["data"]) for event in found} == {"{'m': 1}"}

    @pytest.mark.parametrize("condition", ["store empty", "all replicated", "one behind"])
    async def test_snapshots_belong_to_a_life(self, everlog: Everlog, condition: str) -> None:
        journal = everlog.journal("t")
        with pytest.raises(JournalNotFound):
            await journal.snapshots.save("k", seq_nr=1, payload="s")
        await journal.append("k", events(1, 5))
        await journal.snapshots.save("k", seq_nr=3, payload={"sum": 6}, metadata={"by": "me"})
        await journal.delete("k", to=4)
        await self.settle(everlog, condition)
        recovered = await journal.recover("k")
        assert recovered.snapshot is not None
        assert (recovered.snapshot.payload, recovered.snapshot.metadata) == ({"sum": 6}, {"by": "me"})
        assert [event.seq_nr async for event in recovered.events] == [5]
        with pytest.raises(InvalidInput):
            await journal.snapshots.save("k", seq_nr=6, payload="beyond")
        await journal.purge("k")
        await journal.append("k", events(1, 5))
        await self.settle(everlog, condition)
        assert await journal.snapshots.load("k") is None
        recovered = await journal.recover("k")
        assert recovered.seq_nr == 5
        assert [event.seq_nr async for event in recovered.events] == [1, 2, 3, 4, 5]

    async def test_an_aggregate_is_what_its_events_add_up_to(self, everlog: Everlog) -> None:
        """Updates at the same time, a snapshot every three events, what is behind it deleted now and then."""
        for round_ in range(1, 4):
            await asyncio.gather(*(everlog.update(Total, "k", lambda total: total.emit({"by": 2})) for _ in range(4)))
            kept = await everlog.journal("totals").snapshots.load("k")
            assert kept is not None
            await everlog.journal("totals").delete("k", to=kept.seq_nr)
            await replicate(everlog)
            found = await everlog.load(Total, "k")
            assert (found.sum, found.version) == (8 * round_, 4 * round_)

    async def test_a_snapshot_too_large_is_refused(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        await journal.append("k", events(1, 2))
        await journal.snapshots.save("k", seq_nr=1, payload=b"x" * 2**20)
        for payload, metadata in (
            (b"x" * (2**20 + 1), None),
            ("x" * (2**20 - 6), {"by": 1}),
            ("ü" * 2**19 + "x", None),
        ):
            with pytest.raises(SnapshotTooLarge) as caught:
                await journal.snapshots.save("k", seq_nr=2, payload=payload, metadata=metadata)
            assert (caught.value.size > 2**20, caught.value.limit) == (True, 2**20)
        assert [(one.seq_nr, len(one.payload)) for one in await journal.snapshots.list("k")] == [(1, 2**20)]

    @pytest.mark.parametrize("condition", ["store empty", "all replicated"])
    async def test_what_kafka_journal_accepts_is_accepted(self, everlog: Everlog, condition: str) -> None:
        """Fractional and negative times to live, and metadata that is unreadable or not an object."""
        append = b'{"append":{"range":{"from":1,"to":1},"payloadType":"%b"}}'
        for at, after in enumerate([b'"1.5 hours"', b'"-1 day"', b'".5 min"', b"-5", b"2.0", b'"0.1 nanoseconds"']):
            value = b'{"events":[{"seqNr":1,"payload":"%d"}],"metadata":{"expireAfter":%b}}' % (at, after)
            await produce(everlog, f"duration-{at}", append % b"json", value)
        event = struct.pack(">qi?i", 1, 0, True, 2) + b"hi"
        for at, metadata in enumerate([b"garbage", b"", b'{"expireAfter":"test"}', b"[]", b"null", b"\xff\xfe"]):
            value = struct.pack(">bii", 1, 1, len(event)) + event + metadata
            await produce(everlog, f"metadata-{at}", append % b"binary", value)
        await self.settle(everlog, condition)
        journal = everlog.journal("t")
        for at in range(6):
            (written,) = [one.payload async for one in journal.read(f"duration-{at}")]
            assert written == str(at)
            (written,) = [one.payload async for one in journal.read(f"metadata-{at}")]
            assert written == b"hi"

    async def test_keys_are_listed_once(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        for at in range(5):
            await journal.append(f"stored-{at}", Event(at))
        await replicate(everlog)
        await journal.append("stored-1", Event(2))
        await journal.append("tail", Event(1))
        await journal.purge("stored-2")
        await journal.mark("marked")
        assert await keys(journal) == ["stored-0", "stored-1", "stored-3", "stored-4", "tail"]

    async def test_a_journal_says_when_it_expires(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        await journal.append("k", Event(1), expire_after=timedelta(hours=5))
        await journal.append("ageless", Event(1))
        (event,) = [event async for event in journal.read("k")]
        found = await journal.expiry("k")
        assert found is not None
        assert found.at_ms == event.timestamp + 5 * HOUR_MS
        assert found.day == utc_day(found.at_ms // 1000)
        assert await journal.expiry("ageless") == (None, None)
        assert await journal.expiry("none") is None

    async def test_marks_alone_move_the_pointer(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        positions = [await journal.mark("k", f"m{at}") for at in range(3)]
        await replicate(everlog)
        store, last = everlog.parts.store, positions[-1]
        assert await store.pointer(journal.log_name, last.partition) == last.offset == 2
        assert await store.head(journal.log_name, "k") is None
        assert [page async for page in store.ids(journal.log_name)] == []

    @pytest.mark.parametrize("condition", ALL_CONDITIONS)
    async def test_a_broken_record_halts_its_journal_only(self, everlog: Everlog, condition: str) -> None:
        """It waits with all its bytes and its reason; others go on; what precedes it can be read."""
        journal = everlog.journal("t")
        await journal.append("k", events(1, 2))
        await journal.append("other", events(1, 1))
        offset = await produce(everlog, "k", BROKEN, b"\xff\x00")
        await produce(everlog, "k", b'{"delete":{"to":1}}')
        await journal.append("other", events(2, 2))
        await self.settle(everlog, condition)
        found, halted = await read_until_halted(journal)
        assert found == [1, 2]
        assert halted.offset == offset
        assert await read(journal, to_seq=2) == [1, 2], "what precedes the record is not in doubt"
        assert await read(journal, "other") == [1, 2]
        waiting = [item async for item in everlog.quarantine.list("t")]
        assert [(item.id, item.offset, item.kind) for item in waiting] == [
            ("k", offset, "halted"),
            ("k", waiting[1].offset, "halted"),
        ]
        assert (waiting[0].action, waiting[0].value, waiting[0].topic) == (BROKEN, b"\xff\x00", "t")
        assert waiting[0].reason
        assert await everlog.quarantine.show("t", waiting[0].partition, offset) == waiting[0]
        await self.check_appends_behind_a_halt(everlog)

    async def check_appends_behind_a_halt(self, everlog: Everlog) -> None:
        """A writer that knows of the halt sends nothing; one that learns of it too late can repeat its append."""
        journal = everlog.journal("t")
        with pytest.raises(JournalHalted) as late:
            await journal.append("k", Event("late"))
        with pytest.raises(JournalHalted) as known:
            await journal.append("k", Event("never"))
        assert known.value.append_id is None
        await everlog.quarantine.skip("t", "k")
        await journal.append("k", Event("late"), append_id=late.value.append_id)
        assert [event.payload for event in await read_events(journal)] == [{"n": 2}, "late"]

    @pytest.mark.parametrize("condition", ALL_CONDITIONS)
    async def test_skip_goes_on_without_the_record(self, everlog: Everlog, condition: str) -> None:
        journal = everlog.journal("t")
        await journal.append("k", events(1, 2))
        await produce(everlog, "k", BROKEN)
        await produce(everlog, "k", b'{"delete":{"to":1}}')
        second = await produce(everlog, "k", b"{")
        await self.settle(everlog, condition)
        await everlog.quarantine.retry("t", "k")
        await self.settle(everlog, condition)
        with pytest.raises(JournalHalted):
            await read(journal)
        await everlog.quarantine.skip("t", "k")
        await self.settle(everlog, condition)
        with pytest.raises(JournalHalted) as halted:
            await read(journal)
        assert halted.value.offset == second
        assert [item.offset async for item in everlog.quarantine.list()] == [second]
        assert await everlog.quarantine.skip("t", "k", second) is not None
        await self.settle(everlog, condition)
        assert await read(journal) == [2]
        assert [item async for item in everlog.quarantine.list()] == []
        await journal.append("k", Event(3), expected=2)
        await self.settle(everlog, condition)
        assert await read(journal) == [2, 3]

    @pytest.mark.parametrize("condition", ALL_CONDITIONS)
    async def test_a_purge_ends_a_halt(self, everlog: Everlog, condition: str) -> None:
        journal = everlog.journal("t")
        await journal.append("k", events(1, 2))
        await produce(everlog, "k", BROKEN)
        await self.settle(everlog, condition)
        await journal.purge("k")
        await self.settle(everlog, condition)
        assert await journal.pointer("k") is None
        assert [item async for item in everlog.quarantine.list()] == []
        await journal.append("k", Event(1), expected=0)
        await self.settle(everlog, condition)
        assert await read(journal) == [1]

    async def test_only_a_halted_journal_is_resumed(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        await journal.append("k", events(1, 1))
        for call in (everlog.quarantine.retry, everlog.quarantine.skip):
            with pytest.raises(InvalidInput):
                await call("t", "k")
            with pytest.raises(JournalNotFound):
                await call("t", "absent")
            with pytest.raises(JournalNotFound):
                await call("no-such-topic", "k")
        with pytest.raises(InvalidInput):
            await everlog.quarantine.show("t", 0, 99)
        broken = await produce(everlog, "k", BROKEN)
        with pytest.raises(InvalidInput):
            await everlog.quarantine.skip("t", "k", broken + 1)

    async def test_journals_work_while_nothing_is_replicated(self, everlog: Everlog) -> None:
        """As long as the log holds it, a stopped pipeline changes nothing for readers and writers."""
        journal = everlog.journal("t")
        for at in range(10):
            for journal_id in ("a", "b", "c"):
                await journal.append(journal_id, [Event(at), Event(at)], expected=2 * at)
        await journal.delete("a", to=7)
        await journal.purge("b")
        await journal.append("b", Event("new"), expected=0)
        assert await read(journal, "a") == list(range(8, 21))
        assert await read(journal, "b") == [1]
        assert await read(journal, "c") == list(range(1, 21))
        assert [await journal.pointer(key) for key in ("a", "b", "c", "d")] == [20, 1, 20, None]
        assert await keys(journal) == ["a", "b", "c"]
