"""Drives a stage: runs its queries, sleeps, and hands out events one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

from everlog.errors import EverlogError
from everlog.pekko.port import (
    AskQuery,
    Complete,
    Deliver,
    FetchRows,
    FindBuckets,
    ListBuckets,
    Now,
    PekkoTables,
    ReadDeletedTo,
    ReadEvents,
    ReadIds,
    ReadKeys,
    ReadRows,
    RowPage,
    Stage,
    StageFailed,
    TableQuery,
)
from everlog.runtime.clock import Clock

E = TypeVar("E")
Sleep = Callable[[float], Awaitable[object]]


class StageStream(Generic[E]):
    """An asynchronous iterator. Holds at most one page of events; reads only when one is asked for.

    A cancelled `anext` loses nothing: the query under way is asked again by the next one. So a consumer may wait for an
    event with a time-out, again and again. After an error or the end, every further `anext` says the same.
    """

    def __init__(
        self, stage: Stage[E], tables: PekkoTables, *, clock: Clock, page_size: int, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._stage = stage
        self._tables = tables
        self._clock = clock
        self._page_size = page_size
        self._sleep = sleep
        self._ready: deque[E] = deque()
        self._turn = asyncio.Lock()
        self._ended: EverlogError | StopAsyncIteration | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        async with self._turn:
            while not self._ready:
                if self._ended is not None:
                    raise self._ended
                await self._step()
            return self._ready.popleft()

    async def aclose(self) -> None:
        """End it; events that were not taken yet are dropped."""
        self._ready.clear()
        self._ended = self._ended or StopAsyncIteration()

    async def _step(self) -> None:
        now = now_of(self._clock)
        for effect in self._stage.step(now, self._page_size):
            if isinstance(effect, Deliver):
                self._ready.append(effect.event)
            elif isinstance(effect, AskQuery):
                await self._run(effect.query)
            elif isinstance(effect, Complete):
                self._ended = StopAsyncIteration()
            elif isinstance(effect, StageFailed):
                self._ended = effect.error
            else:
                await self._sleep((effect.until - now.steady) / 1000)

    async def _run(self, query: TableQuery) -> None:
        try:
            page = await run_query(self._tables, query)
        except EverlogError as error:
            self._stage.failed(error, now_of(self._clock))
        else:
            self._stage.answer(page, now_of(self._clock))


def now_of(clock: Clock) -> Now:
    return Now(clock.now_ms(), round(clock.monotonic() * 1000))


async def run_query(tables: PekkoTables, query: TableQuery) -> RowPage[Any]:
    match query:
        case ReadRows():
            return await tables.rows(query)
        case FindBuckets():
            return await tables.buckets(query)
        case ListBuckets():
            return await tables.all_buckets(query)
        case ReadKeys():
            return await tables.keys(query)
        case FetchRows():
            return await tables.fetch(query)
        case ReadEvents():
            return await tables.events(query)
        case ReadDeletedTo():
            return await tables.deleted_to(query)
        case ReadIds():
            return await tables.ids(query)
