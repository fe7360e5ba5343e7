"""A model of the store under the fenced log: conditional writes whose answers get lost, processes that stop anywhere.

The real protocol runs on it, one process at a time, switched at every request by a seeded scheduler.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from everlog.queues.cassandra.shard_log import SegmentState, ShardBackend, ShardRow


@types.coroutine
def switch() -> Generator[None, None, None]:
    """Let others run."""
    yield


class Scheduler:
    """Runs coroutines in a random order. One that is paused is not chosen for a while."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._runnable: list[tuple[Coroutine[Any, Any, None], int]] = []
        self.steps = 0

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._runnable.append((work, 0))

    def run(self, most: int) -> None:
        """So many steps at most; what is left then is dropped, as a crash would."""
        while self._runnable and self.steps < most:
            self.steps += 1
            at = self.chance.randrange(len(self._runnable))
            work, until = self._runnable[at]
            if until > self.steps:
                continue
            if self.chance.random() < 0.005:
                self._runnable[at] = (work, self.steps + self.chance.choice([50, 500]))
                continue
            try:
                work.send(None)
            except StopIteration:
                self._runnable.pop(at)
        for work, _ in self._runnable:
            work.close()
        self._runnable.clear()


class World:
    """What the store holds. A conditional write with an unknown outcome may still happen, until it is settled."""

    def __init__(self, chance: random.Random, *, lossy: float = 0.05, ignore_fence: bool = False) -> None:
        self.chance = chance
        self.lossy = lossy
        self.ignore_fence = ignore_fence
        self.shard = ShardRow(0, "", "", 0, 0, 0)
        self.statics: dict[int, SegmentState] = {}
        self.records: dict[int, list[bytes]] = {}
        self.blobs: dict[tuple[int, str], bytes] = {}
        self._pending: dict[object, Callable[[], bool]] = {}
        self.conditional = 0
        self.dropped: list[int] = []

    def settle(self, partition: object) -> None:
        """A serial read, or another conditional write, finishes what was begun, or kills it."""
        pending = self._pending.pop(partition, None)
        if pending is not None and self.chance.random() < 0.5:
            pending()

    def write_if(self, partition: object, apply: Callable[[], bool]) -> bool | None:
        self.settle(partition)
        self.conditional += 1
        if self.chance.random() >= self.lossy:
            return apply()
        fate = self.chance.randrange(3)
        if fate == 0:
            apply()
        elif fate == 1:
            self._pending[partition] = apply
        return None


class ModelBackend(ShardBackend):
    """One process's way to the world."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def read_shard(self) -> ShardRow:
        await switch()
        self.world.settle("shard")
        return self.world.shard

    async def change_shard(self, expected: ShardRow, changed: ShardRow) -> bool | None:
        await switch()

        def apply() -> bool:
            if self.world.shard[0] != expected.epoch or self.world.shard.beat != expected.beat:
                return False
            self.world.shard = changed
            return True

        answer = self.world.write_if("shard", apply)
        await switch()
        return answer

    async def read_statics(self, segment: int) -> SegmentState:
        await switch()
        self.world.settle(segment)
        return self.world.statics.get(segment, SegmentState(None, 0))

    async def raise_fence(self, segment: int, observed: SegmentState, epoch: int) -> bool | None:
        await switch()

        def apply() -> bool:
            now = self.world.statics.get(segment, SegmentState(None, 0))
            if now.fence != observed.fence:
                return False
            self.world.statics[segment] = SegmentState(epoch, now.tail)
            return True

        return self.world.write_if(segment, apply)

    async def append(self, segment: int, epoch: int, tail: int, records: Any) -> bool | None:
        await switch()

        def apply() -> bool:
            now = self.world.statics.get(segment, SegmentState(None, 0))
            if now.tail != tail or (now.fence != epoch and not self.world.ignore_fence):
                return False
            self.world.statics[segment] = SegmentState(now.fence, tail + len(records))
            self.world.records.setdefault(segment, []).extend(records)
            return True

        answer = self.world.write_if(segment, apply)
        await switch()
        return answer

    async def read_records(self, segment: int, after: int, limit: int) -> list[tuple[int, bytes]]:
        await switch()
        found = self.world.records.get(segment, [])[after : after + limit]
        return list(enumerate(found, after + 1))

    async def write_blob(self, segment: int, item: str, data: bytes) -> None:
        await switch()
        assert (segment, item) not in self.world.blobs, "a name is used once"
        self.world.blobs[segment, item] = data
        await switch()

    async def read_blob(self, segment: int, item: str) -> bytes | None:
        await switch()
        return self.world.blobs.get((segment, item))

    async def drop_segment(self, segment: int) -> None:
        await switch()
        self.world.dropped.append(segment)
        for place in [place for place in self.world.blobs if place[0] == segment]:
            del self.world.blobs[place]
        # A delete is advisory, and repair may bring a segment back: nobody may depend on it.
        if self.world.chance.random() < 0.5:
            self.world.records.pop(segment, None)
            self.world.statics.pop(segment, None)
