"""What holds across the lives of a journal and between its writers: expectations, recovery, repeated appends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everlog.api import Everlog
from everlog.core.actions import Delete, encode_action
from everlog.core.events import Event, EventRecord
from everlog.core.head import Head
from everlog.core.record import NewRecord, Record
from everlog.core.values import Version
from everlog.errors import (
    AppendIdReused,
    Conflict,
    InvalidInput,
    InvalidPosition,
    JournalHalted,
    OutcomeDeleted,
    Overtaken,
)
from everlog.journal.journal import Journal, LocalJournal
from everlog.journal.parts import parts_over
from everlog.journal.snapshots import LocalSnapshots, Recovered
from everlog.store.port import Snapshot
from everlog.testing.journal_support import events, produce, read, read_events
from everlog.testing.replication import replicate

LIFE_CONDITIONS = ["store empty", "all replicated", "one behind"]


def rival(log: Everlog, topic: str = "t") -> Journal:
    """The same journals, as another process has them: it knows nothing of what this one remembers."""
    return LocalJournal(topic, parts_over(log.parts, log.parts.log))


async def numbers(recovered: Recovered) -> list[int]:
    return [event.seq_nr async for event in recovered.events]


def _content(event: EventRecord) -> tuple[object, ...]:
    """All of an event but its place in the log."""
    return event.seq_nr, event.timestamp, event.payload, event.tags, event.record_id, event.append_id


def _said(record: Record) -> tuple[Any, ...]:
    return record.timestamp, record.key, record.action, record.value, record.headers


class JournalLives:
    """The part of `JournalConformance` that is about purges, new lives and several writers."""

    pytestmark = pytest.mark.asyncio

    async def settle(self, everlog: Everlog, condition: str) -> None:
        raise NotImplementedError

    async def test_a_version_holds_in_its_own_life_only(self, everlog: Everlog) -> None:
        """Purged and begun again, the journal is at the same seqNr: what was read before no longer holds."""
        journal, other = everlog.journal("t"), rival(everlog)
        token = await journal.append("k", [Event(1), Event(2)])
        seen, recovered = await journal.pointer("k"), await journal.recover("k")
        assert seen == token.version == recovered.seq_nr == 2
        assert isinstance(seen, Version)
        assert seen.life == token.life == recovered.seq_nr.life
        await other.purge("k")
        await other.append("k", [Event("new"), Event("life")])
        for expected in (seen, token, recovered.seq_nr):
            with pytest.raises(Conflict, match="purged since") as conflict:
                await journal.append("k", Event("late"), expected=expected)
            assert (conflict.value.expected, conflict.value.actual) == (2, 2)
            assert conflict.value.life not in (None, seen.life)
        present = await journal.pointer("k")
        assert await journal.append("k", Event(3), expected=present)
        assert [event.payload for event in await read_events(journal)] == ["new", "life", 3]

    async def test_a_plain_number_means_the_present_life(self, everlog: Everlog) -> None:
        """This writer remembers an old life; a number that is right in the new one is no conflict."""
        journal, other = everlog.journal("t"), rival(everlog)
        for _ in range(3):
            await journal.append("k", [Event(1), Event(2)], expected=0)
            await other.purge("k")
            await other.append("k", [Event(1), Event(2)], expected=0)
            token = await journal.append("k", Event("mine"), expected=2)
            assert await other.pointer("k") == token.version == 3
            await other.purge("k")

    @pytest.mark.parametrize("condition", LIFE_CONDITIONS)
    async def test_a_version_deletes_in_its_own_life_only(self, everlog: Everlog, condition: str) -> None:
        """What was read is deleted, whatever was appended since; of an old life nothing is left to delete."""
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", events(1, 3))
        seen = (await journal.recover("k")).seq_nr
        await other.append("k", events(4, 5))
        assert await journal.delete("k", to=seen)
        await self.settle(everlog, condition)
        assert await read(journal) == [4, 5]
        await other.purge("k")
        await other.append("k", events(1, 5))
        assert await journal.delete("k", to=seen) is None
        await self.settle(everlog, condition)
        assert await read(journal) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("condition", LIFE_CONDITIONS)
    async def test_a_delete_that_a_purge_overtakes_spares_the_new_life(self, everlog: Everlog, condition: str) -> None:
        """The record of a delete comes behind the beginning of a new life, because its writer was slow."""
        journal = rival(everlog)
        await journal.append("k", events(1, 3))
        seen = await journal.pointer("k")
        assert seen is not None
        await journal.purge("k")
        await journal.append("k", events(1, 5))
        late = encode_action(Delete(int(seen), if_exists=True, only_life=seen.life))
        await produce(everlog, "k", late)
        await self.settle(everlog, condition)
        assert await read(journal) == [1, 2, 3, 4, 5]
        present = await journal.pointer("k")
        assert present is not None
        mine = encode_action(Delete(2, if_exists=True, only_life=present.life))
        await produce(everlog, "k", mine)
        await self.settle(everlog, condition)
        assert await read(journal) == [3, 4, 5]

    async def test_a_token_of_another_topic_is_no_expectation(self, everlog: Everlog) -> None:
        token = await everlog.journal("elsewhere").append("k", Event(1))
        with pytest.raises(InvalidPosition):
            await everlog.journal("t").append("k", Event(2), expected=token)

    @pytest.mark.parametrize("condition", LIFE_CONDITIONS)
    async def test_recovery_is_of_one_moment(self, everlog: Everlog, condition: str) -> None:
        """Another process keeps a snapshot and deletes before the events are read: that is no state of sum 0."""
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", events(1, 5))
        recovered = await journal.recover("k")
        await other.snapshots.save("k", seq_nr=5, payload=15)
        await other.delete("k", to=5)
        await self.settle(everlog, condition)
        with pytest.raises(Overtaken):
            await numbers(recovered)
        again = await journal.recover("k")
        assert again.snapshot is not None
        assert (again.snapshot.payload, await numbers(again), again.seq_nr) == (15, [], 5)

    @pytest.mark.parametrize("condition", LIFE_CONDITIONS)
    async def test_recovery_does_not_mix_lives(self, everlog: Everlog, condition: str) -> None:
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", events(1, 3))
        await journal.snapshots.save("k", seq_nr=2, payload="old")
        recovered = await journal.recover("k")
        await other.purge("k")
        await other.append("k", events(1, 4))
        await self.settle(everlog, condition)
        with pytest.raises(Overtaken):
            await numbers(recovered)
        with pytest.raises(Conflict):
            await journal.append("k", Event("late"), expected=recovered.seq_nr)
        with pytest.raises(Conflict):
            await journal.snapshots.save("k", seq_nr=recovered.seq_nr, payload="of the old life")
        again = await journal.recover("k")
        assert (again.snapshot, await numbers(again), again.seq_nr) == (None, [1, 2, 3, 4], 4)

    async def test_recovery_misses_no_snapshot_that_was_replaced(
        self, everlog: Everlog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the look at the journal and the one at its snapshots, others fill the ring and delete: look again."""
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", events(1, 3))
        await journal.snapshots.save("k", seq_nr=3, payload=3)
        await journal.delete("k", to=3)
        find = LocalSnapshots.newest
        rounds = 0

        async def newest(snapshots: LocalSnapshots, journal_id: str, head: Head | None) -> tuple[Snapshot | None, bool]:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                for at in range(4, 15):
                    await other.append("k", events(at, at))
                    await other.snapshots.save("k", seq_nr=at, payload=at)
                await other.delete("k", to=14)
            return await find(snapshots, journal_id, head)

        monkeypatch.setattr(LocalSnapshots, "newest", newest)
        recovered = await journal.recover("k")
        assert recovered.snapshot is not None
        assert (recovered.snapshot.payload, await numbers(recovered), recovered.seq_nr) == (14, [], 14)
        assert rounds == 2

    async def test_recovery_of_a_halted_journal_says_so(self, everlog: Everlog) -> None:
        """What precedes the bad record, then JournalHalted: as every read."""
        journal = everlog.journal("t")
        await journal.append("k", events(1, 3))
        await produce(everlog, "k", b'{"append":{"range":{"from":4,"to":4},"payloadType":"json"}}', b"no JSON")
        recovered = await journal.recover("k")
        assert [(await anext(recovered.events)).seq_nr for _ in range(3)] == [1, 2, 3]
        with pytest.raises(JournalHalted):
            await anext(recovered.events)
        await journal.snapshots.save("k", seq_nr=3, payload="all")
        with pytest.raises(JournalHalted):
            await numbers(await journal.recover("k"))

    async def test_recovery_of_a_busy_journal_without_snapshots(
        self, everlog: Everlog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some events are deleted, no snapshot was ever kept, and others append all the time: that is no obstacle."""
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", events(1, 5))
        await journal.delete("k", to=2)
        find = LocalSnapshots.newest

        async def newest(snapshots: LocalSnapshots, journal_id: str, head: Head | None) -> tuple[Snapshot | None, bool]:
            await other.append("k", Event("more"))
            return await find(snapshots, journal_id, head)

        monkeypatch.setattr(LocalSnapshots, "newest", newest)
        recovered = await journal.recover("k")
        assert (recovered.snapshot, await numbers(recovered), recovered.seq_nr) == (None, [3, 4, 5], 5)

    async def test_recovery_ends_where_it_began(self, everlog: Everlog) -> None:
        """A snapshot at the end, or none; what is appended later is not part of it, wherever it is stored by then."""
        journal = everlog.journal("t")
        await journal.append("k", events(1, 3))
        plain = await journal.recover("k")
        await journal.snapshots.save("k", seq_nr=3, payload="all")
        with_snapshot, absent = await journal.recover("k"), await journal.recover("absent")
        await journal.append("k", events(4, 6))
        await journal.append("absent", Event(1))
        await replicate(everlog)
        assert (await numbers(plain), plain.seq_nr) == ([1, 2, 3], 3)
        assert (await numbers(with_snapshot), with_snapshot.seq_nr) == ([], 3)
        assert (await numbers(absent), absent.seq_nr, absent.snapshot) == ([], 0, None)

    async def test_the_pipeline_does_not_overtake_a_recovery(self, everlog: Everlog) -> None:
        """A delete that was there before is replicated between the pages: nothing of that moment is missing."""
        journal = everlog.journal("t")
        await journal.append("k", events(1, 40))
        await replicate(everlog)
        await journal.delete("k", to=3)
        recovered = await journal.recover("k")
        found = [(await anext(recovered.events)).seq_nr]
        await replicate(everlog)
        await journal.append("k", events(41, 50))
        found += await numbers(recovered)
        assert found == list(range(4, 41))

    async def test_a_key_of_the_caller_makes_an_append_repeatable(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        await journal.append("k", Event(0))
        keyed: dict[str, Any] = {"expected": 1, "idempotency_key": "order-7"}
        first = await journal.append("k", [Event({"a": 1}, tags={"x"}), Event("b")], **keyed)
        again = await rival(everlog).append("k", [Event({"a": 1}, tags={"x"}), Event("b")], **keyed)
        assert (again, again.range, again.life) == (first, first.range, first.life)
        alike = [Event({"a": True}, tags={"x"}), Event("b")], [Event({"a": 1.0}, tags={"x"}), Event("b")]
        others = [Event({"a": 2}, tags={"x"}), Event("b")], [Event({"a": 1}), Event("b")], Event({"a": 1})
        for other in (*others, *alike):
            with pytest.raises(AppendIdReused):
                await journal.append("k", other, **keyed)
        with pytest.raises(Conflict):
            await journal.append("k", Event("b"), expected=1, idempotency_key="order-8")
        two: dict[str, Any] = {"expected": 3, "idempotency_key": "order-9"}
        await journal.append("k", Event({"a": 1, "b": [2.5, None]}), **two)
        await journal.append("k", Event({"b": [2.5, None], "a": 1}), **two)
        gap = await journal.append("k", Event("far", seq_nr=9), expected=4, idempotency_key="gap")
        assert await journal.append("k", Event("far", seq_nr=9), expected=4, idempotency_key="gap") == gap
        assert await read(journal) == [1, 2, 3, 4, 9]
        for wrong in ({"idempotency_key": "k"}, {**keyed, "idempotency_key": "ü"}, {**keyed, "append_id": "1.x"}):
            with pytest.raises(InvalidInput):
                await journal.append("k", Event(1), **wrong)

    async def test_a_cancelled_append_is_asked_for_by_its_key(self, everlog: Everlog) -> None:
        journal = everlog.journal("t")
        await journal.append("k", Event(0))
        for at in range(1, 6):
            keyed: dict[str, Any] = {"expected": at, "idempotency_key": f"try-{at}"}
            task = asyncio.ensure_future(journal.append("k", Event(at), **keyed))
            for _ in range(at - 1):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (await journal.append("k", Event(at), **keyed)).range == (at + 1, at + 1)
        assert [event.payload for event in await read_events(journal)] == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize("condition", LIFE_CONDITIONS)
    async def test_a_repeated_append_whose_place_is_deleted_ends_for_good(
        self, everlog: Everlog, condition: str
    ) -> None:
        """The outcome can no longer be found out, and a further repetition would not change that."""
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", Event(1))
        keyed: dict[str, Any] = {"expected": 1, "idempotency_key": "lost"}
        await journal.append("k", Event(2), **keyed)
        await other.append("k", Event(3))
        await other.delete("k", to=2)
        await self.settle(everlog, condition)
        with pytest.raises(OutcomeDeleted) as gone:
            await journal.append("k", Event(2), **keyed)
        assert not gone.value.retriable
        version = await journal.pointer("k")
        await other.purge("k")
        await other.append("k", events(1, 3))
        with pytest.raises(OutcomeDeleted):
            await journal.append("k", Event(4), expected=version, idempotency_key="of-an-old-life")

    @pytest.mark.parametrize("condition", LIFE_CONDITIONS)
    async def test_a_plain_append_goes_on_after_another_writer_deleted(self, everlog: Everlog, condition: str) -> None:
        """What this writer remembers is long gone: it looks again, and never says that an outcome is unknown."""
        journal, other = everlog.journal("t"), rival(everlog)
        await journal.append("k", events(1, 2))
        for at in range(3, 20, 4):
            await other.append("k", [Event(at), Event(at + 1), Event(at + 2)])
            await other.delete("k", to=at + 2)
            await self.settle(everlog, condition)
            assert (await journal.append("k", Event("mine"))).range == (at + 3, at + 3)
        await other.purge("k")
        assert (await journal.append("k", Event("mine"))).range == (1, 1)

    async def test_a_mirrored_log_folds_to_the_same_journals(self, everlog: Everlog) -> None:
        """Other offsets, another topic: the same lives, events, verdicts, and the same record left out."""
        journal = everlog.journal("t")
        for journal_id in ("a", "b", "c"):
            await journal.append(journal_id, [Event(1), Event(2)], expected=0)
        stale = await journal.pointer("a")
        await journal.purge("a")
        await journal.append("a", [Event("again"), Event("more")])
        await journal.append("a", Event("third"), expected=2)
        with pytest.raises(Conflict):
            await journal.append("a", Event("late"), expected=stale)
        await journal.delete("b", to=1)
        await journal.append("b", Event(3))
        await journal.append("c", Event(4, seq_nr=4), verdict=False)
        found = await self.mirror(everlog, journal, "mirror")
        assert found > 0
        for condition in ("before", "after"):
            for journal_id in ("a", "b", "c"):
                original = await read_events(journal, journal_id)
                copied = await read_events(everlog.journal("mirror"), journal_id)
                assert [_content(event) for event in copied] == [_content(event) for event in original]
                assert original
            if condition == "before":
                await replicate(everlog)

    async def mirror(self, everlog: Everlog, journal: Journal, name: str) -> int:
        """Copy the topic's records one by one behind records of other keys, as a mirroring tool would."""
        log = everlog.parts.log
        original = await log.topic(journal.log_name)
        copy = await log.create_topic(everlog.config.journal.topic_prefix + name)
        assert original is not None
        copied = 0
        for partition in range(original.partitions):
            for at in range(3):
                await log.append(copy, NewRecord(partition, 1_700_000_000_000, f"x{at}".encode(), None, b"other"))
            end = (await log.bounds(original, partition)).end
            for key in sorted(await log.tail_keys(original, partition, after=-1, before=end)):
                for record in await log.tail(original, partition, key, after=-1, before=end, limit=1000):
                    await log.append(copy, NewRecord(partition, *_said(record)))
                    copied += 1
        return copied
