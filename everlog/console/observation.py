"""One look at everything: what the home page shows, and what the sampler keeps.

Each part is asked on its own and within a time limit: a part that does not answer is a fact to be shown, and never
a reason to show nothing of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from everlog.api import Everlog
from everlog.errors import Busy, DocumentNotFound, EverlogError, QueueNotFound
from everlog.pipeline.status import Status
from everlog.projections.api import ProjectionStatus
from everlog.projections.copies import is_copy

PATIENCE_S = 4.0
PROBE_TIMEOUT_S = 3.0
MAX_QUEUES = 200
MAX_PROJECTIONS = 500

T = TypeVar("T")
U = TypeVar("U")


class QueueSummary(msgspec.Struct, frozen=True):
    """The counts of one queue; `unknown` says why they are not known here."""

    name: str
    ready: int
    delayed: int
    running: int
    dead: int
    paused: bool
    oldest_due_ms: int | None
    unknown: str | None = None


class TagsSummary(msgspec.Struct, frozen=True):
    """How far the views by tag are: records of the log that they do not cover yet, and the watermark's time."""

    enabled: bool
    lag: int = 0
    watermark_ms: int | None = None


class ViewSummary(msgspec.Struct, frozen=True):
    """What became of the last rebuild and the last verification of a projection's view, if that is bad news."""

    name: str
    failed: str | None = None
    different: Sequence[str] = ()


class UnshownSummary(msgspec.Struct, frozen=True):
    """A view of documents that has set elements aside."""

    view: str
    count: int


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment. Of a part that did not answer, `errors` has the reason under its name."""

    time_ms: int
    status: Status | None
    tags: TagsSummary | None
    projections: Sequence[ProjectionStatus]
    queues: Sequence[QueueSummary]
    more_queues: int = 0
    document_events: int = 0
    views: Sequence[ViewSummary] = ()
    unshown: Sequence[UnshownSummary] = ()
    errors: dict[str, str] = {}

    def knows(self, part: str) -> bool:
        """Whether a part was asked, and answered."""
        if part in self.errors:
            return False
        if self.status is not None or part in ("log", "store"):
            return True
        return part == "queues" and "store" not in self.errors

    @property
    def records(self) -> int:
        """All records that were ever written."""
        return 0 if self.status is None else sum(one.end for one in self.status.partitions)

    @property
    def replicated(self) -> int:
        """Those of them that are in the tables."""
        return 0 if self.status is None else self.records - self.status.lag


async def observe(log: Everlog, *, patience_s: float = PATIENCE_S) -> Observation:
    """Look at all parts, at those that do not need each other at the same time.

    Log and store are asked alone first. Nearly all else needs both: while one is away, only what can do without it is
    asked, so that a look is short when it matters most, and does not add to the trouble.
    """
    errors: dict[str, str] = {}
    none: tuple[list[QueueSummary], int] = ([], 0)
    parts = log.parts

    async def ask(part: str, question: Callable[[], Awaitable[T]], otherwise: U, seconds: float = patience_s) -> T | U:
        try:
            async with asyncio.timeout(seconds):
                return await question()
        except EverlogError as error:
            errors[part] = str(error)
        except TimeoutError:
            errors[part] = f"no answer in {seconds:g} s"
        return otherwise

    status: Status | None = None
    tags: TagsSummary | None = None
    projections: list[ProjectionStatus] = []
    views: list[ViewSummary] = []
    unshown: list[UnshownSummary] = []
    queues, more = none
    probe = min(PROBE_TIMEOUT_S, patience_s)
    await asyncio.gather(
        ask("log", parts.log.topics, None, probe),
        ask("store", parts.store.statuses, None, probe),
    )
    if not errors:
        status, projections, (queues, more) = await asyncio.gather(
            ask("store", log.status, None),
            ask("projections", log.projections.list, projections),
            ask("queues", lambda: _queues(log), none),
        )
    elif "store" not in errors:
        queues, more = await ask("queues", lambda: _queues(log), none)
    if status is not None:
        known = status
        tags = await ask("tags", lambda: _tags(log, known), None)
        views = await ask("projections", lambda: _views(log, projections[:MAX_PROJECTIONS]), views)
        unshown = await ask("store", lambda: _unshown(log), unshown)
    documents = log.config.documents.topic
    return Observation(
        time_ms=parts.clock.now_ms(),
        status=status,
        tags=tags,
        projections=projections[:MAX_PROJECTIONS],
        queues=queues,
        more_queues=more,
        document_events=0 if status is None else sum(p.end for p in status.partitions if p.topic == documents),
        views=views,
        unshown=unshown,
        errors=errors,
    )


async def _tags(log: Everlog, status: Status) -> TagsSummary:
    """What the watermark covers, against the ends of the log."""
    tables = log.parts.store.tags
    if tables is None or not log.config.tags.enabled:
        return TagsSummary(enabled=False)
    found = await tables.watermark()
    prefix = log.config.journal.topic_prefix
    ends = {f"{prefix}{one.topic}/{one.partition}": one.end for one in status.partitions}
    lag = sum(max(0, end - found.positions.get(place, 0)) for place, end in ends.items())
    return TagsSummary(enabled=True, lag=lag, watermark_ms=found.end.ms if found.nr else None)


async def _views(log: Everlog, projections: Sequence[ProjectionStatus]) -> list[ViewSummary]:
    found = []
    for name in sorted({one.name for one in projections if not is_copy(one.name)}):
        seen = await log.projections.copies(name)
        failed = None if seen.rebuild is None else seen.rebuild.error
        different = [] if seen.verify is None else [one.table for one in seen.verify.differences if not one.equal]
        if failed or different:
            found.append(ViewSummary(name, failed, different))
    return found


async def _unshown(log: Everlog) -> list[UnshownSummary]:
    """Views of documents that have set something aside. Where there never was a document, none is looked for."""
    if log.config.documents.topic not in await log.topics():
        return []
    found = []
    for one in await log.documents.views():
        with suppress(DocumentNotFound):  # it was deleted meanwhile
            found.append(await log.documents.view(one.uri))
    return [UnshownSummary(one.uri, one.unshown) for one in found if one.unshown]


async def _queues(log: Everlog) -> tuple[list[QueueSummary], int]:
    names = await log.queues.names()
    found = []
    for name in names[:MAX_QUEUES]:
        with suppress(QueueNotFound):  # it was deleted meanwhile
            found.append(await _summary(log, name))
    return found, max(0, len(names) - MAX_QUEUES)


async def _summary(log: Everlog, name: str) -> QueueSummary:
    """On a cluster a queue belongs to the process that uses it: a mere look must not make this process its owner."""
    if not log.queues.counts_anywhere and not log.queues.counted(name):
        return QueueSummary(name, 0, 0, 0, 0, False, None, "only the process that has it can count it")
    try:
        found = await log.queue(name).stats()
    except Busy as error:
        return QueueSummary(name, 0, 0, 0, 0, False, None, str(error))
    return QueueSummary(name, found.ready, found.delayed, found.running, found.dead, found.paused, found.oldest_due_ms)
