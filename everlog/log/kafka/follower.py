"""A follower reads a partition on until a position is reached, and says why if it is not."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Protocol

from confluent_kafka import KafkaError

from everlog.core.record import Record
from everlog.errors import EverlogError, Unreachable
from everlog.log.kafka.errors import LogPartition, explain, is_silence
from everlog.log.kafka.fetcher import Fetcher
from everlog.log.port import Bounds, Trimmed

# How often a follower checks whether callers that wait get on.
CHECK_S = 0.05
# How long reading goes on after the last caller that waited.
LINGER_S = 0.5

_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_offset = attrgetter("offset")

RecordSink = Callable[[Sequence[Record], int], None]
"""Takes new records, and up to where they are complete."""


class FollowedPartition(Protocol):
    """What is known of the partition apart from its records."""

    place: LogPartition
    servers: str
    timeout: float

    async def end(self) -> int:
        """Where it ends now: above all that was acknowledged here."""

    async def bounds(self) -> Bounds:
        """Where it starts and ends now."""

    async def check(self) -> None:
        """Raise an error if the topic was deleted or made again."""


class PartitionFollower:
    """Reads on from an offset until it is stopped. Complete up to `position`.

    A position is reached when the reader has passed it, not when a record right before it was seen: there may be none.
    `beyond`: it stopped because the log ends below the position, so what was read is no longer in it.
    """

    def __init__(
        self,
        partition: FollowedPartition,
        fetcher: Fetcher,
        at: int,
        sink: RecordSink,
        *,
        key: bytes | None = None,
        until: int | None = None,
    ) -> None:
        self.place = partition.place
        self.key = key
        self.until = until
        self.position = at
        self.stopped = False
        self.beyond = False
        self._partition = partition
        self._fetcher = fetcher
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []
        self._end = -1
        self._error: Exception | None = None
        self._moved = self._used = self._loop.time()
        self._task: asyncio.Task[None] | None = None
        fetcher.start(self, at)
        self._timer = self._loop.call_later(CHECK_S, self._check)

    async def reach(self, before: int) -> int:
        """Wait until everything below `before` is read; less than that is returned if the partition ends there."""
        if self._error is not None:
            raise self._error
        if self.position >= before:
            return before
        now = self._loop.time()
        if not self._waiting:
            self._moved = now  # no caller waited until now
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((before, future))
        try:
            return await future
        finally:
            self._used = self._loop.time()

    def advance(self, position: int) -> None:
        """Everything up to but not including `position` is known from elsewhere."""
        if position > self.position:
            self.position = position
            self._settle()

    def finish(self) -> None:
        """Answer all that wait: they need nothing more."""
        self._answer(self._waiting)
        self._waiting = []

    def stop(self, error: Exception | None = None) -> None:
        """Read no more. Callers that wait get the error, or what was reached."""
        if self.stopped:
            return
        self.stopped = True
        self._error = error
        self._timer.cancel()
        self._fetcher.stop(self)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if error is None:
            self.finish()
        for _, future in self._waiting:
            if not future.done():
                assert error is not None
                future.set_exception(error)
        self._waiting = []

    # What the fetcher calls.

    def take(self, records: list[Record], position: int) -> None:
        if position <= self.position:
            return
        if records and records[0].offset < self.position:
            del records[: bisect_left(records, self.position, key=_offset)]
        self.position = position
        self._sink(records, position)
        self._settle()

    def end(self, position: int) -> None:
        self._end = position

    def fail(self, error: KafkaError) -> None:
        if error.code() in _OUT_OF_RANGE:
            self._run(self._leave_range)
        elif not is_silence(error):
            self.stop(explain(error, f"reading {self.place}", self._partition.servers))

    def _settle(self) -> None:
        self._moved = self._loop.time()
        if self._waiting:
            position = self.position
            reached = [waiting for waiting in self._waiting if waiting[0] <= position]
            if reached:
                self._waiting = [waiting for waiting in self._waiting if waiting[0] > position]
                self._answer(reached)

    def _answer(self, reached: Sequence[tuple[int, asyncio.Future[int]]]) -> None:
        for before, future in reached:
            if not future.done():
                future.set_result(min(before, self.position))

    def _check(self) -> None:
        """Now and then: does a caller wait, and does the reading get on?"""
        now = self._loop.time()
        if any(future.cancelled() for _, future in self._waiting):
            self._waiting = [waiting for waiting in self._waiting if not waiting[1].cancelled()]
        if self._waiting:
            quiet = now - self._moved
            if quiet > self._partition.timeout:
                self._run(self._give_up)
            elif quiet >= CHECK_S and self._end >= self.position:
                self._run(self._confirm_end)
        elif now - self._used > LINGER_S:
            self.stop()
            return
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """One check at a time of what is wrong. It may be cancelled before it begins."""
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._guarded(work))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except EverlogError as error:
            self.stop(error)

    async def _confirm_end(self) -> None:
        """The reader found no more; if the partition really ends here, this is all that there is."""
        if await self._partition.end() <= self.position:
            self.finish()

    async def _leave_range(self) -> None:
        """The log has nothing at this position: it was trimmed, or it ends below it, or the leader has just changed."""
        bounds = await self._partition.bounds()
        if bounds.start > self.position:
            self.stop(Trimmed(bounds.start))
        elif bounds.end < self.position:
            self.beyond = True
            self.stop()
        else:
            await asyncio.sleep(CHECK_S)
            self._fetcher.stop(self)
            self._fetcher.start(self, self.position)

    async def _give_up(self) -> None:
        """Nothing came for too long."""
        await self._partition.check()
        bounds = await self._partition.bounds()
        if bounds.start > self.position:
            self.stop(Trimmed(bounds.start))
        elif self._loop.time() - self._moved > self._partition.timeout:
            self.stop(
                Unreachable(
                    f"{self.place}: nothing came from offset {self.position} on in {self._partition.timeout:g} s, "
                    f"though the log ends at {bounds.end}: is Kafka well at {self._partition.servers}? Try again"
                )
            )
