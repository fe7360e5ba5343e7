"""The fenced log of one queue shard: one owner appends, any process may take it over, no other write gets in.

Nothing here knows Cassandra: `ShardBackend` is what it needs of a store with conditional writes. A conditional
write answers True or False, or None when its outcome is unknown; then it is read again, serially, which settles it.

* Ownership is an epoch. The process that raises it owns the shard; the owner before finds out at its next write. Every
  change of the shard's row moves its beat and is conditional on the beat before: the writer has seen all of it.
* Every segment has a fence: the epoch that may append. A new owner first raises the epoch, then the fence of the newest
  segment: from then on no other opens a segment or appends. A batch of the old owner is either in before, and is
  replayed, or does not get in. Then it looks whether the epoch is still its own: an owner that slept may have fenced
  a segment that was dropped meanwhile.
* An append is one conditional write: the fence is mine and the tail is what I wrote last. A lost answer is settled by
  the tail, so a batch is in the log exactly once.
* Segments are dropped from the oldest on, after what still lives in them was written again (`carry`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from everlog.errors import Deposed, IntegrityViolated, Unreachable

PAGE = 500
MAX_TRIES = 50


class ShardRow(NamedTuple):
    """The row of a shard. `beat` moves while its owner lives."""

    epoch: int
    owner: str
    address: str
    beat: int
    low: int
    high: int


class SegmentState(NamedTuple):
    """Who may append to a segment, and how many records it has."""

    fence: int | None
    tail: int


class ShardBackend(Protocol):
    """One shard in a store. All reads are serial unless they say otherwise."""

    async def read_shard(self) -> ShardRow: ...

    async def change_shard(self, expected: ShardRow, changed: ShardRow) -> bool | None:
        """Replace the row if its epoch and beat are still the expected ones; so the rest is, too."""

    async def read_statics(self, segment: int) -> SegmentState: ...

    async def raise_fence(self, segment: int, observed: SegmentState, epoch: int) -> bool | None:
        """Set the fence if it is still the observed one."""

    async def append(self, segment: int, epoch: int, tail: int, records: Sequence[bytes]) -> bool | None:
        """Add records behind the tail, if fence and tail are these."""

    async def read_records(self, segment: int, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Records in order; need not be serial: the fence was raised before."""

    async def write_blob(self, segment: int, item: str, data: bytes) -> None:
        """A plain write, of a name that is used once."""

    async def read_blob(self, segment: int, item: str) -> bytes | None: ...

    async def drop_segment(self, segment: int) -> None:
        """A plain delete, of records and blobs: this segment is no longer read, whether it works or not."""


class ShardLog:
    """The log as its owner uses it. One call at a time."""

    def __init__(self, backend: ShardBackend, *, owner: str, address: str = "") -> None:
        self._backend = backend
        self._owner = owner
        self._address = address
        self.shard: ShardRow | None = None
        self._tail = 0

    @property
    def low(self) -> int:
        return self._mine().low

    @property
    def high(self) -> int:
        return self._mine().high

    @property
    def epoch(self) -> int:
        return self._mine().epoch

    @property
    def tail(self) -> int:
        """How many records the newest segment has."""
        return self._tail

    def _mine(self) -> ShardRow:
        if self.shard is None:
            raise Deposed(f"{self._owner} no longer owns this queue: try again")
        return self.shard

    def depose(self) -> None:
        """Forget the ownership."""
        self.shard = None

    async def take_over(self, seen: ShardRow) -> bool:
        """Become the owner, if no other process did since the row was `seen`; then no owner before us can append."""
        wanted = ShardRow(seen.epoch + 1, self._owner, self._address, seen.beat + 1, seen.low, seen.high)
        if not await self._change(seen, wanted):
            return False
        # What we saw is what we replaced, the newest segment included: every change of the row moves its beat.
        self.shard = wanted
        self._tail = (await self._fence(wanted.high)).tail
        return True

    async def _change(self, expected: ShardRow, wanted: ShardRow) -> bool:
        """A conditional change of the row; an unknown outcome is read again."""
        for _ in range(MAX_TRIES):
            applied = await self._backend.change_shard(expected, wanted)
            if applied is not None:
                return applied
            row = await self._backend.read_shard()
            if row == wanted:
                return True
            if (row.epoch, row.beat) != (expected.epoch, expected.beat):
                return False
        raise Unreachable("the outcome of a change of ownership stays unknown: try again")

    async def _fence(self, segment: int) -> SegmentState:
        """Make a segment ours, against owners before us; one after us deposes us."""
        epoch = self._mine().epoch
        for _ in range(MAX_TRIES):
            observed = await self._backend.read_statics(segment)
            if observed.fence == epoch:
                # If we slept before this, owners after us may have dropped the segment, and its fence with it: what
                # we fenced then is a segment that is not read. Our epoch still counts, so it is not that one.
                await self.confirm()
                return observed
            if observed.fence is not None and observed.fence > epoch:
                self._lose()
            await self._backend.raise_fence(segment, observed, epoch)
        raise Unreachable("the newest segment of a queue cannot be fenced: try again")

    def _lose(self) -> None:
        self.depose()
        self._mine()

    async def replay(self) -> AsyncIterator[tuple[int, list[bytes]]]:
        """All records of the living segments, in order, page by page, each page with its segment.

        The newest one ends at the tail that we found when we fenced it. An owner after us may append to it, and drop
        older ones, while we read: then what we read makes no sense, and `confirm` says why.
        """
        mine, tail = self._mine(), self._tail
        for segment in range(mine.low, mine.high + 1):
            after, end = 0, tail if segment == mine.high else None
            while end is None or after < end:
                limit = PAGE if end is None else min(PAGE, end - after)
                page = await self._backend.read_records(segment, after, limit)
                if [seq for seq, _ in page] != list(range(after + 1, after + 1 + len(page))) or (end and not page):
                    await self.confirm()
                    raise IntegrityViolated(f"segment {segment} of a queue's log has a hole after record {after}")
                if not page:
                    break
                yield segment, [record for _, record in page]
                after = page[-1][0]

    async def confirm(self) -> None:
        """Raises `Deposed` if another process owns the shard by now."""
        if (await self._backend.read_shard()).epoch != self._mine().epoch:
            self._lose()

    async def append(self, records: Sequence[bytes]) -> None:
        """Add records, all or none; returns when they are known to be in the log, once."""
        mine = self._mine()
        for _ in range(MAX_TRIES):
            applied = await self._backend.append(mine.high, mine.epoch, self._tail, records)
            if applied:
                break
            # False may also mean that our own first try got in and its answer was lost below us.
            now = await self._backend.read_statics(mine.high)
            if now.fence != mine.epoch:
                self._lose()
            if now.tail == self._tail + len(records):
                break
            assert now.tail == self._tail, "no other process appends under our fence"
        else:
            self.depose()
            raise Unreachable("the outcome of an append to a queue stays unknown: it is read again at the next use")
        self._tail += len(records)

    async def write_blob(self, segment: int, item: str, data: bytes) -> None:
        """Data that a record will name."""
        self._mine()
        await self._backend.write_blob(segment, item, data)

    async def read_blob(self, segment: int, item: str) -> bytes:
        """Data that a record names: they were written before it."""
        found = await self._backend.read_blob(segment, item)
        if found is None:
            await self.confirm()
            raise IntegrityViolated(f"segment {segment} of a queue's log has lost the data {item}")
        return found

    async def beat(self) -> None:
        """Show that we live."""
        mine = self._mine()
        wanted = mine._replace(beat=mine.beat + 1)
        if not await self._change(mine, wanted):
            self._lose()
        self.shard = wanted

    async def rotate(self) -> None:
        """Open a new segment. No append may be under way."""
        mine = self._mine()
        wanted = mine._replace(high=mine.high + 1, beat=mine.beat + 1)
        if not await self._change(mine, wanted):
            self._lose()
        self.shard = wanted
        self._tail = (await self._fence(wanted.high)).tail
        assert self._tail == 0, "a segment is never used twice"

    async def drop_oldest(self) -> None:
        """Drop the oldest segment; what lives in it was carried before."""
        mine = self._mine()
        assert mine.low < mine.high, "the newest segment stays"
        wanted = mine._replace(low=mine.low + 1, beat=mine.beat + 1)
        if not await self._change(mine, wanted):
            self._lose()
        self.shard = wanted
        await self._backend.drop_segment(mine.low)

    async def resign(self) -> None:
        """Let the next one in at once."""
        if self.shard is not None:
            mine, self.shard = self.shard, None
            await self._backend.change_shard(mine, mine._replace(owner="", address="", beat=mine.beat + 1))
