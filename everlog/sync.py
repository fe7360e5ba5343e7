"""The blocking twin: the same API without `await`.

    with everlog.sync.connect("everlog-data") as log:
        log.journal("orders").append("o-1", [Event({"placed": 3})])
        for event in log.journal("orders").read("o-1"): ...

No second implementation: every call runs the asynchronous one in an event loop of its own thread. A twin may be used
by any number of threads; their appends then share commits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from everlog import client
from everlog.clock import Clock
from everlog.config import Config
from everlog.journal import journal as asynchronous
from everlog.journal import quarantine, snapshots
from everlog.journal.events import EventRecord
from everlog.journal.values import Position
from everlog.pipeline.portal import Portal
from everlog.projections import management
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.sqlite import Trace
from everlog.store.base import Snapshot

FETCH = 500

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Twin(Generic[T]):
    """Something asynchronous, and the door to the loop that it lives in."""

    def __init__(self, inner: T, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal


def _blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Twin[T], P], R]:
    """The method, waiting for its result."""

    @functools.wraps(method)
    def call(self: _Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(method(self._inner, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[T, P], AsyncIterator[R]],
) -> Callable[Concatenate[_Twin[T], P], Iterator[R]]:
    """The method, as a plain iterator that fetches several items at a time."""

    @functools.wraps(method)
    def call(self: _Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _items(self._portal, method(self._inner, *args, **kwargs), FETCH)

    return call


def _flattening(
    method: Callable[Concatenate[T, P], AsyncIterator[list[R]]],
) -> Callable[Concatenate[_Twin[T], P], Iterator[R]]:
    """The method, as a plain iterator over the items of its pages, one page at a time."""

    @functools.wraps(method)
    def call(self: _Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        pages = _items(self._portal, method(self._inner, *args, **kwargs), 1)
        return (item for page in pages for item in page)

    return call


def _items(portal: Portal, source: AsyncIterator[R], fetch: int) -> Iterator[R]:
    """What an asynchronous iterator gives; an error comes after the items before it."""
    try:
        error: Exception | None = None
        while error is None:
            items, error = portal.call(_take(source, fetch))
            yield from items
        if not isinstance(error, StopAsyncIteration):
            raise error
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            # Without waiting: a forgotten iterator may be collected in the loop's own thread.
            portal.send(close())


async def _take(source: AsyncIterator[R], count: int) -> tuple[list[R], Exception | None]:
    items: list[R] = []
    try:
        while len(items) < count:
            items.append(await anext(source))
    except Exception as error:
        return items, error
    return items, None


@dataclass(frozen=True, slots=True)
class Recovered:
    """As `everlog.Recovered`, with plain events."""

    seq_nr: int
    snapshot: Snapshot | None
    events: Iterator[EventRecord]


class Snapshots(_Twin[snapshots.Snapshots]):
    """The snapshots of one topic's journals."""

    save = _blocking(snapshots.Snapshots.save)
    load = _blocking(snapshots.Snapshots.load)
    list = _blocking(snapshots.Snapshots.list)
    delete = _blocking(snapshots.Snapshots.delete)


class Quarantine(_Twin[quarantine.Quarantine]):
    """All quarantined records."""

    list = _iterating(quarantine.Quarantine.list)
    show = _blocking(quarantine.Quarantine.show)
    retry = _blocking(quarantine.Quarantine.retry)
    skip = _blocking(quarantine.Quarantine.skip)


class Journal(_Twin[asynchronous.Journal]):
    """The journals of one topic, by id."""

    append = _blocking(asynchronous.Journal.append)
    read = _flattening(asynchronous.Journal.read_pages)
    read_pages = _iterating(asynchronous.Journal.read_pages)
    pointer = _blocking(asynchronous.Journal.pointer)
    head = _blocking(asynchronous.Journal.head)
    delete = _blocking(asynchronous.Journal.delete)
    purge = _blocking(asynchronous.Journal.purge)
    mark = _blocking(asynchronous.Journal.mark)
    keys = _iterating(asynchronous.Journal.keys)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def snapshots(self) -> Snapshots:
        return Snapshots(self._inner.snapshots, self._portal)

    def recover(self, journal_id: str) -> Recovered:
        """The newest snapshot, the events after it, and the seqNr that they lead to (0: no journal)."""
        found = self._portal.call(self._inner.recover(journal_id))
        return Recovered(found.seq_nr, found.snapshot, _items(self._portal, found.events, FETCH))


class Projections(_Twin[management.Projections]):
    """The projections of a log. Handlers run in the twin's own thread."""

    list = _blocking(management.Projections.list)
    get = _blocking(management.Projections.get)
    offset = _blocking(management.Projections.offset)
    set = _blocking(management.Projections.set)
    clear = _blocking(management.Projections.clear)
    pause = _blocking(management.Projections.pause)
    resume = _blocking(management.Projections.resume)
    skip = _blocking(management.Projections.skip)
    dead_letters = _blocking(management.Projections.dead_letters)
    replay = _blocking(management.Projections.replay)
    forget = _blocking(management.Projections.forget)
    wait = _blocking(management.Projections.wait)
    verify = _blocking(management.Projections.verify)

    @contextmanager
    def run(self, *projections: Projection) -> Iterator[Runner]:
        """Run them as long as the block lasts."""
        runner = self._portal.call(self._inner.runner(*projections))
        self._portal.call(_started(runner))
        try:
            yield runner
        finally:
            self._portal.call(runner.stop())

    def fetch(self, name: str, statement: str, *values: Any, after: Position | str | None = None) -> Any:
        """Rows of the view that a projection fills in the store."""
        return self._portal.call(self._inner.view(name).fetch(statement, *values, after=after))


async def _started(runner: Runner) -> None:
    runner.start()


class Everlog(_Twin[client.Everlog]):
    """An open event log. Made by `everlog.sync.connect`; used as `with`."""

    topics = _blocking(client.Everlog.topics)
    status = _blocking(client.Everlog.status)
    expire = _blocking(client.Everlog.expire)
    trim = _blocking(client.Everlog.trim)

    def __init__(self, inner: client.Everlog) -> None:
        self._inner = inner
        self._opened: Portal | None = None

    @property
    def _portal(self) -> Portal:  # type: ignore[override]
        if self._opened is None:
            raise RuntimeError("not open: use 'with everlog.sync.connect(…) as log'")
        return self._opened

    def __enter__(self) -> Self:
        if self._opened is None:
            self._opened = Portal()
            try:
                self._opened.call(self._inner.__aenter__())
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish open writes, let go of the files, end the thread."""
        portal, self._opened = self._opened, None
        if portal is not None:
            try:
                portal.call(self._inner.close())
            finally:
                portal.close()

    def journal(self, topic: str) -> Journal:
        """The journals of a topic; the topic is created by the first append."""
        return Journal(self._inner.journal(topic), self._portal)

    @property
    def config(self) -> Config:
        return self._inner.config

    @property
    def quarantine(self) -> Quarantine:
        """Records that could not be applied, and how their journals go on."""
        return Quarantine(self._inner.quarantine, self._portal)

    @property
    def projections(self) -> Projections:
        """Views that handlers make of events."""
        return Projections(self._inner.projections, self._portal)


def connect(
    target: str | os.PathLike[str] | Config = "everlog-data",
    *,
    clock: Clock | None = None,
    trace: Trace | None = None,
) -> Everlog:
    """Open a folder (embedded), or what a TOML file says.

    >>> log = connect("everlog-data")
    """
    return Everlog(client.connect(target, clock=clock, trace=trace))
