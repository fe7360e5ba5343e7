"""A queue in several shards: operations find theirs, and the answers of all are those of one queue."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.config.queue_options import QueueSettings, make_options
from everlog.errors import EverlogError, InvalidConfig, InvalidInput, OwnedElsewhere, PayloadTooLarge, StorageFailed
from everlog.queues import wire
from everlog.queues.engine import Engine
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.memory import MemoryTable
from everlog.queues.operations import (
    AskDue,
    AskHead,
    AskStats,
    Claim,
    Done,
    Fail,
    Handle,
    ListDead,
    ListFlags,
    ListLeases,
    Operation,
    Pause,
    Peek,
    Put,
    Revive,
    Sweep,
)
from everlog.queues.rows import Packet
from everlog.queues.shards import ShardPart, combine, in_turn, shard_of

NOW = 1_000_000_000


class Table(MemoryTable):
    def __init__(self, part: ShardPart) -> None:
        super().__init__()
        self._part = part

    def next_entry(self) -> int:
        self._last_entry = self._part.next_entry(self._last_entry)
        return self._last_entry


class Sharded:
    """So many engines, behaving as one queue."""

    def __init__(self, shards: int) -> None:
        self.engines = [
            Engine(Table(ShardPart(index, shards)), QueueSettings(max_timeouts=1)) for index in range(shards)
        ]

    def apply(self, operation: Operation, now: int = NOW):
        index = shard_of(operation, len(self.engines))
        if index is not None:
            return self.engines[index].apply(operation, now)
        if isinstance(operation, Claim):
            leases = []
            for at in in_turn([engine.apply(AskHead(), now) for engine in self.engines]):
                left = msgspec.structs.replace(operation, limit=operation.limit - len(leases))
                leases += self.engines[at].apply(left, now) if left.limit else []
            return leases
        return combine(operation, [engine.apply(operation, now) for engine in self.engines])


def packet(number: int, priority: int = 128) -> Packet:
    key = encode_key(number)
    return Packet(key, hash_key(key), b"n", priority, NOW)


@given(st.integers(1, 7), st.integers(0, 6), st.lists(st.integers(0, 50), max_size=20))
def test_entries_grow_and_say_where_they_are(count, index, jumps):
    """Whatever number was the last one, also one that is not this shard's."""
    part, last = ShardPart(index % count, count), 0
    for jump in jumps:
        found = part.next_entry(last)
        assert found > last
        assert part.has(found)
        assert found - last <= count
        last = found + jump


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=40))
def test_shards_are_one_queue(shards, puts):
    """The same puts into one shard and into several: the same jobs, pages, counts; entries are never the same."""
    one, many = Sharded(1), Sharded(shards)
    for number, priority in puts:
        results = [queue.apply(Put(packet(number, priority))).result for queue in (one, many)]
        assert results[0] == results[1]
    places = [[row.order[:3] for row in queue.apply(Peek(100))] for queue in (one, many)]
    assert places[0] == places[1]
    assert one.apply(AskStats()) == many.apply(AskStats())
    assert one.apply(AskDue(5)).due == many.apply(AskDue(5)).due
    assert one.apply(AskHead())[:3] == many.apply(AskHead())[:3]
    paged, after = [], None
    while page := many.apply(Peek(3, after)):
        paged += page
        after = page[-1].order
    assert [row.order[:3] for row in paged] == places[0]
    first = many.apply(Claim("w", 1))
    assert first[0].row.order[:3] == places[0][0]
    leases = first + many.apply(Claim("w", 1000))
    assert sorted(lease.row.order[:3] for lease in leases) == places[0]
    assert len({lease.row.entry for lease in leases}) == len(leases)
    assert {row.entry for row in many.apply(ListLeases(1000))} == {lease.row.entry for lease in leases}
    assert len(many.apply(ListLeases(1))) == 1
    for lease in leases:
        handle = Handle(lease.row.entry, lease.row.token)
        assert many.apply(Done(handle) if lease.row.entry % 2 else Fail(handle)) == "OK"
    letters = many.apply(ListDead(1000))
    assert [letter.entry for letter in letters] == sorted(
        (lease.row.entry for lease in leases if lease.row.entry % 2 == 0), reverse=True
    )
    flags = many.apply(ListFlags())
    assert [(flag.reason, flag.count) for flag in flags] == ([("failed", len(letters))] if letters else [])
    for letter in letters:
        assert many.apply(Revive(letter.entry)).result == "CREATED"
    assert many.apply(AskStats()).ready == len(letters)


def test_what_is_for_all_shards():
    queue = Sharded(3)
    for number in range(20):
        queue.apply(Put(packet(number)))
    assert queue.apply(Pause(True)) is True
    assert queue.apply(Pause(True)) is False
    assert (queue.apply(Claim("w", 5)), queue.apply(AskStats()).paused) == ([], True)
    queue.apply(Pause(False))
    assert len(queue.apply(Claim("w", 20))) == 20
    assert queue.apply(Sweep(), NOW + 3_600_001) == 20
    assert queue.apply(AskDue(100), NOW).next_ms is None


def test_limits_need_one_shard():
    for limit in ({"rate_limit": "1/s"}, {"max_in_flight": 1}):
        with pytest.raises(InvalidConfig, match="shards"):
            make_options(shards=2, **limit)
    assert make_options(shards=64).shards == 64
    with pytest.raises(InvalidConfig):
        make_options(shards=65)


def test_operations_and_outcomes_travel():
    engine = Engine(MemoryTable(), QueueSettings())
    operations = [Put(packet(1)), Claim("w", 1), AskStats(), Peek(), ListFlags(), AskDue(), AskHead()]
    assert wire.decode_operations(wire.encode_operations(operations)) == operations
    outcomes = [engine.apply(operation, NOW) for operation in operations]
    outcomes[3] = PayloadTooLarge(5, 4)
    outcomes[4] = OwnedElsewhere("jobs", "me")
    found = wire.decode_outcomes(wire.encode_outcomes(outcomes), operations)
    assert [one for one in found if not isinstance(one, EverlogError)] == [
        one for one in outcomes if not isinstance(one, EverlogError)
    ]
    large, elsewhere = found[3:5]
    assert isinstance(large, PayloadTooLarge)
    assert (large.size, large.limit, str(large)) == (5, 4, str(PayloadTooLarge(5, 4)))
    assert isinstance(elsewhere, OwnedElsewhere)
    assert elsewhere.owner == "me"


def test_every_operation_travels_and_is_for_one_shard_or_all():
    """A new operation needs a place in all of these."""
    for kind in get_args(Operation):
        assert kind in wire._decoders, kind


def test_what_is_no_message_is_refused():
    for data in (b"", b"nonsense", wire.encode([]), wire.encode([{"type": "Explode"}]), wire.encode([1])):
        with pytest.raises(InvalidInput):
            wire.decode_operations(data)
    for data in (b"", wire.encode([]), wire.encode([(True, "no stats")])):
        with pytest.raises(StorageFailed):
            wire.decode_outcomes(data, [AskStats()])
    unknown = wire.unpack_error(wire.WireError("KeyboardInterrupt", "text", {}))
    assert type(unknown) is StorageFailed
