"""What the tests of views by tag share: other settings, reads in one go, tables that count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import LocalEverlog
from everlog.config import TopicConfig
from everlog.core.events import Event
from everlog.errors import Unreachable
from everlog.journal.parts import make_parts
from everlog.store.tag_port import TagTables
from everlog.tags.tag import Tag, TaggedEvent, Tags
from everlog.tags.upkeep import JournalRefs, all_journals, rebuild_journal
from everlog.testing.replication import replicate

PATIENCE = 30.0


class AdvancingClock(Protocol):
    """A clock that is moved by hand."""

    def now_ms(self) -> int: ...

    def advance(self, seconds: float) -> None: ...


def configured(log: Everlog, *, topics: dict[str, TopicConfig] | None = None, **tags: Any) -> Everlog:
    """The same log and store under other settings."""
    parts = log.parts
    config = msgspec.structs.replace(
        log.config, tags=msgspec.structs.replace(log.config.tags, **tags), topics=topics or log.config.topics
    )
    other = LocalEverlog(config, clock=parts.clock)
    other._parts = make_parts(config, parts.log, parts.store, parts.clock)
    return other


async def everything(tag: Tag, **how: Any) -> list[TaggedEvent]:
    return [event async for event in tag.current(**how)]


async def payloads(tag: Tag, **how: Any) -> list[Any]:
    return [event.payload async for event in tag.current(**how)]


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    """The next `count` events, which must come."""
    async with asyncio.timeout(PATIENCE):
        return [await anext(events) for _ in range(count)]


def check_order(events: Sequence[TaggedEvent]) -> None:
    """Offsets grow; per journal the seqNrs do (over one life), and the numbers count from 1."""
    assert all(one.place < two.place for one, two in pairwise(events))
    last: dict[tuple[str, str], int] = {}
    for event in events:
        key = (event.topic, event.id)
        assert event.number == last.get(key, 0) + 1
        last[key] = event.number


class TagSuite:
    """What the parts of the suite share."""

    @pytest.fixture
    def everlog(self) -> Any:
        raise NotImplementedError("give an open log with a clock that is moved by hand")

    @pytest.fixture
    def time(self, everlog: Everlog) -> AdvancingClock:
        return everlog.parts.clock  # type: ignore[return-value]

    async def fill(self, log: Everlog, count: int, *, tags: Sequence[str] = ("t",), journals: int = 3) -> list[Any]:
        """As many events, over some journals; their payloads."""
        orders = log.journal("orders")
        for number in range(count):
            await orders.append(f"o-{number % journals}", [Event(number, tags=tags)])
        return list(range(count))


async def rebuild_all(log: Everlog, tags: Sequence[str] | None = None) -> int:
    """What the Spark job does, in this process."""
    parts, refs = log.parts, JournalRefs(log.parts.store)
    written = 0
    async for place in all_journals(parts.store, parts.config):
        ref = await refs.of(*place)
        if ref is not None:
            written += await rebuild_journal(parts.store, parts.config, ref, tags)
    return written


async def replicate_without_views(log: Everlog) -> None:
    """Replicate as a store without views does."""
    store = log.parts.store
    tables, store.tags = store.tags, None
    try:
        await replicate(log)
    finally:
        store.tags = tables


class CountingTables:
    """Tables that count what is asked of them; the reads with these numbers fail for a passing reason."""

    def __init__(self, inner: TagTables | None, fails_at: set[int] | None = None) -> None:
        assert inner is not None
        self.inner = inner
        self.calls: dict[str, int] = {"buckets": 0, "rows": 0, "watermark": 0}
        self.failed = 0
        self._fails_at = fails_at or set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in self.calls:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name == "rows" and self.calls[name] in self._fails_at:
                self.failed += 1
                raise Unreachable("no answer")
            return await method(*args, **kwargs)

        return call


def tag_through(log: Everlog, tables: Any) -> Tag:
    """The tag `t`, read through these tables."""
    tags = Tags(log.parts)
    tags.tables = tables
    tags.watermarks._tables = tables
    return tags.tag("t")


def tables_of(log: Everlog) -> TagTables:
    tables = log.parts.store.tags
    assert tables is not None
    return tables


def last_slice(first: int) -> int:
    return {0: 99, 100: 612, 613: 1023}[first]
