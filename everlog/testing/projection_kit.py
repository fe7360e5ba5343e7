"""Tests of your own projections: sources of plain lists, a store in memory, runs that end.

provider = ListProvider([(1, "abc"), (2, "def")], extract_offset=lambda envelope: envelope[0])
projection = Projection("words", source=provider, handler=handler)
await run_projection(projection, lambda: check(...))
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

from everlog.journal.parts import JournalParts
from everlog.projections.lifecycle import Restart
from everlog.projections.memory import MemoryOffsets
from everlog.projections.observers import Observer
from everlog.projections.offsets import Offset
from everlog.projections.port import OffsetStore
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.provider_source import ReadOffset
from everlog.projections.runner import Runner
from everlog.projections.save_window import OffsetProgress
from everlog.projections.strategies import AtLeastOnce
from everlog.runtime.lease import Lease


class ListProvider:
    """A source of envelopes at hand. It does not end unless `completes`, as a live source.

    `start_from(stored, envelope)`: leading envelopes for which this is true are left out; by default none are, as the
    provider does not know how offsets compare.
    """

    def __init__(
        self,
        envelopes: Iterable[Any] | AsyncIterable[Any],
        extract_offset: Callable[[Any], Offset],
        *,
        completes: bool = False,
        start_from: Callable[[Any, Any], bool] | None = None,
        extract_creation_time: Callable[[Any], int] = lambda _: 0,
        verify_offset: Callable[[Any], Any] = lambda _: True,
        extract_journal: Callable[[Any], str | None] = lambda _: None,
    ) -> None:
        self._envelopes = envelopes
        self._completes = completes
        self._start_from = start_from
        self.extract_offset = extract_offset
        self.extract_creation_time = extract_creation_time
        self.verify_offset = verify_offset
        self.extract_journal = extract_journal

    async def source(self, read_offset: ReadOffset) -> AsyncIterator[Any]:
        stored = await read_offset()
        leading = stored is not None and self._start_from is not None
        async for envelope in _each(self._envelopes):
            if leading and self._start_from is not None and self._start_from(stored, envelope):
                continue
            leading = False
            yield envelope
        if not self._completes:
            await asyncio.get_running_loop().create_future()


async def _each(envelopes: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(envelopes, AsyncIterable):
        async for envelope in envelopes:
            yield envelope
    else:
        for envelope in envelopes:
            yield envelope


def testable(projection: Projection, **changes: Any) -> Projection:
    """The projection without restarts, and with whatever else a test wants different."""
    found = copy(projection)
    found.restart = Restart(min_s=0.0, max_s=0.0, max_restarts=0)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def per_envelope(projection: Projection) -> Projection:
    """The projection as at-least-once with a save per envelope, without restarts."""
    return testable(projection, strategy=AtLeastOnce(save_every=1))


async def run_projection(
    projection: Projection,
    assertion: Callable[[], Any],
    *,
    seconds: float = 3.0,
    interval: float = 0.1,
    store: OffsetStore | None = None,
    parts: JournalParts | None = None,
) -> None:
    """Run until the assertion passes, at most this long; always stop. A failure of the stream is raised.

    The assertion raises or returns False while it does not hold; it may be async.
    """
    failures: list[BaseException] = []
    watched = testable(projection, observers=(*projection.observers, _Failures(failures)))
    own = MemoryOffsets() if store is None else store
    try:
        async with Runner([watched], store=own, parts=parts, poll_s=min(interval, 0.05)) as runner:
            await _until(runner, assertion, failures, seconds, interval)
    finally:
        if store is None:
            await own.close()


class _Failures(Observer):
    """Keeps what failed."""

    def __init__(self, failures: list[BaseException]) -> None:
        self._failures = failures

    def failed(self, projection: ProjectionId, cause: BaseException) -> None:
        self._failures.append(cause)


async def _until(
    runner: Runner, assertion: Callable[[], Any], failures: Sequence[BaseException], seconds: float, interval: float
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        if failures:
            raise failures[0]
        try:
            found = assertion()
            if (await found if inspect.isawaitable(found) else found) is not False:
                return
            problem: Exception = AssertionError("the assertion is still False")
        except AssertionError as error:
            problem = error
        if loop.time() >= deadline:
            raise problem
        await asyncio.sleep(interval)


class ProjectionSink:
    """Lets a projection go on save by save: `await sink.request(2)` gives the next two saves' offsets."""

    def __init__(self) -> None:
        self._demand = asyncio.Semaphore(0)
        self._saved: asyncio.Queue[Offset | None] = asyncio.Queue()
        self.started = asyncio.Event()

    async def request(self, count: int) -> list[Offset | None]:
        self.started.set()
        for _ in range(count):
            self._demand.release()
        return [await self._saved.get() for _ in range(count)]

    def let_go(self) -> None:
        """The test is over: a save that waits may end."""
        self._demand.release()

    async def allow(self) -> None:
        await self._demand.acquire()

    def saved(self, offset: Offset | None) -> None:
        self._saved.put_nowait(offset)


class _SinkStore(MemoryOffsets):
    def __init__(self, sink: ProjectionSink) -> None:
        super().__init__()
        self._sink = sink
        self.open = False

    async def save(self, lease: Lease, progress: OffsetProgress) -> None:
        if not self.open:
            await self._sink.allow()
        await super().save(lease, progress)
        self._sink.saved(progress.offset)


@asynccontextmanager
async def projection_sink(
    projection: Projection, *, parts: JournalParts | None = None
) -> AsyncIterator[ProjectionSink]:
    """A run whose pace the test sets. It starts with the first request."""
    sink = ProjectionSink()
    store = _SinkStore(sink)
    runner = Runner([testable(projection)], store=store, parts=parts)

    async def start() -> None:
        await sink.started.wait()
        runner.start()

    starting = asyncio.create_task(start())
    try:
        yield sink
    finally:
        starting.cancel()
        store.open = True
        sink.let_go()
        await runner.stop()
        await store.close()
