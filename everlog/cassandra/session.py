"""How statements are run: prepared once, as many at a time as there are turns, tried again, errors with a remedy.

All statements of Everlog may be repeated: their write timestamps come from the log, or they are conditional and are
read again. So a time-out is simply tried again, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

import acsylla

from everlog.cassandra.errors import TRANSIENT, DriverError, explain
from everlog.cassandra.pool import Pool, open_pool
from everlog.config import CassandraConfig
from everlog.errors import Refused, Unreachable
from everlog.runtime.retry import Backoff
from everlog.runtime.trace import Trace

log = logging.getLogger("everlog.cassandra")

MIN_RETRY_S = 0.05
MAX_RETRY_S = 2.0
MIN_RECONNECT_S = 0.5
MAX_RECONNECT_S = 30.0
MAX_PREPARED = 10_000
MAX_UNKNOWN_S = 5.0
UNKNOWN_RETRY_S = 0.1

CassandraRow: TypeAlias = tuple[Any, ...]
CassandraRequest: TypeAlias = Any
"""A bound statement, a batch of them, or the text of one that is to be prepared."""

T = TypeVar("T")


class Session:
    """What one user has of a pool: it runs statements with its own retries and trace. Make it with `connect`."""

    def __init__(self, pool: Pool, config: CassandraConfig, trace: Trace | None = None) -> None:
        self.config = config
        self._pool = pool
        self._raw = pool.driver
        self._turns = pool.turns
        self._prepared = pool.prepared
        self._trace = trace

    async def prepare(self, cql: str) -> Any:
        """The prepared statement of this text; asked of the server once."""
        found = self._prepared.get(cql)
        return found if found is not None else await once_known(partial(self._prepare, cql))

    async def _prepare(self, cql: str) -> Any:
        async with self._pool.preparing:
            found = self._prepared.get(cql)
            if found is None:
                assert len(self._prepared) < MAX_PREPARED, "statements are a fixed set; values are bound"
                found = await self.execute(cql, f"PREPARE {cql}")
                self._prepared[cql] = found
        return found

    async def fetch(self, cql: str, *values: Any, serial: bool = False) -> list[CassandraRow]:
        """All rows of a query. `serial` settles what became of a conditional write that timed out."""
        statement = (await self.prepare(cql)).bind(list(values), **({"consistency": _SERIAL} if serial else {}))
        return rows_of(await self.execute(statement, cql))

    async def page(
        self, cql: str, values: Sequence[Any], size: int, state: bytes | None = None
    ) -> tuple[list[CassandraRow], bytes | None]:
        """One page of at most `size` rows, and where the next one starts; None if there is no more."""
        statement = (await self.prepare(cql)).bind(list(values), page_size=size, page_state=state)
        result = await self.execute(statement, cql)
        return rows_of(result), result.page_state() if result.has_more_pages() else None

    async def pages(self, cql: str, *values: Any, page: int) -> AsyncIterator[list[CassandraRow]]:
        """The rows of a query, at most `page` at a time."""
        state: bytes | None = None
        while True:
            rows, state = await self.page(cql, values, page, state)
            if rows:
                yield rows
            if state is None:
                return

    async def write(self, cql: str, *values: Any) -> None:
        """One statement whose repetition does no harm."""
        await self.execute((await self.prepare(cql)).bind(list(values)), cql)

    async def write_if(self, cql: str, *values: Any) -> bool | None:
        """A conditional write: whether it was applied; None if that is unknown, then read again with `serial`."""
        return await self.attempt_if((await self.prepare(cql)).bind(list(values)), cql)

    async def attempt_if(self, request: CassandraRequest, cql: str) -> bool | None:
        """The same for a bound statement, or a batch of one partition with a condition in it."""
        try:
            async with self._turns:
                result = await self._once(request, cql)
        except DriverError as error:
            if isinstance(error, TRANSIENT):
                log.info("a conditional write has no known outcome (%s): it is read again", error)
                return None
            raise explain(error, self.config, cql) from error
        return bool(rows_of(result)[0][0])

    async def batch_if(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> bool | None:
        """A conditional batch on one partition: applied as a whole or not at all; None if that is unknown."""
        bound = [(await self.prepare(cql)).bind(list(values)) for cql, values in statements]
        return await self.attempt_if(make_batch(bound), statements[0][0])

    async def change_schema(self, cql: str) -> None:
        """A statement that changes tables: not prepared, and given time."""
        request = acsylla.create_statement(cql, timeout=max(30.0, self.config.request_timeout_s))
        await once_known(partial(self.execute, request, cql))

    async def execute(self, request: CassandraRequest, cql: str) -> Any:
        """Run a bound statement or a batch, again and again if need be."""
        async with self._turns:
            return await self.attempt(request, cql)

    async def attempt(self, request: CassandraRequest, cql: str) -> Any:
        """The same for a caller that holds a turn already."""
        try:
            return await self._once(request, cql)
        except DriverError as error:
            return await self._again(request, cql, error)

    async def _again(self, request: CassandraRequest, cql: str, error: Exception) -> Any:
        """What did not work the first time: once more, if that can help."""
        pause = Backoff(MIN_RETRY_S, MAX_RETRY_S)
        for attempt in range(1, self.config.max_retries + 1):
            if not isinstance(error, TRANSIENT):
                break
            log.info("attempt %d of %d: %s", attempt, self.config.max_retries + 1, error)
            await asyncio.sleep(pause.next())
            try:
                return await self._once(request, cql)
            except DriverError as found:
                error = found
        raise explain(error, self.config, cql) from error

    def _once(self, request: CassandraRequest, cql: str) -> Awaitable[Any]:
        if isinstance(request, str):
            run = self._raw.create_prepared(request)
        elif isinstance(request, _Batch):
            run = self._raw.execute_batch(request)
        else:
            run = self._raw.execute(request, native_types=True)
        return run if self._trace is None else self._traced(run, cql, self._trace)

    async def _traced(self, run: Awaitable[Any], cql: str, trace: Trace) -> Any:
        started = time.perf_counter()
        try:
            return await run
        finally:
            trace(" ".join(cql.split()), time.perf_counter() - started)

    async def run_all(self, requests: Iterable[tuple[str, CassandraRequest, str]], count: int) -> dict[str, Exception]:
        """Run (owner, request, text), many at a time; the owners whose request was refused for good, with the reason.

        `requests` may be lazy: each is made when its turn comes. `count` is about how many there are.
        """
        source = iter(requests)
        failed: dict[str, Exception] = {}

        async def work() -> None:
            async with self._turns:
                for owner, request, cql in source:
                    try:  # as `attempt` does, without one more coroutine: this is the pipeline's innermost loop
                        await self._once(request, cql)
                    except DriverError as error:
                        try:
                            await self._again(request, cql, error)
                        except Refused as refused:
                            failed.setdefault(owner, refused)

        await self.together([work() for _ in range(min(count, self.config.max_requests))])
        return failed

    async def share(self, items: Iterable[T], run: Callable[[T], Awaitable[None]], count: int) -> None:
        """Run all items, as many at a time as there are turns. A worker keeps its turn: `run` must not ask for one."""
        source = iter(items)

        async def work() -> None:
            async with self._turns:
                for item in source:
                    await run(item)

        await self.together([work() for _ in range(min(count, self.config.max_requests))])

    async def together(self, work: Sequence[Awaitable[None]]) -> None:
        """Run all; the first error ends the others and is raised as it is."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            for task in asyncio.as_completed(tasks):
                await task
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Run nothing from now on. The connections end with the last session of the pool, once its requests have."""
        if self._raw is not _CLOSED:
            self._raw = _CLOSED
            await self._pool.release()


class _Closed:
    """Stands in for the driver's session when a user has closed its own."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("this session is closed")

    create_prepared = execute = execute_batch = _refuse


_CLOSED = _Closed()


async def once_known(ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` answers. A node lists a keyspace or a table that another opener makes a moment before it knows it."""
    deadline = time.monotonic() + MAX_UNKNOWN_S
    while True:
        try:
            return await ask()
        except Refused as error:
            if "does not exist" not in str(error) or time.monotonic() > deadline:
                raise
            log.info("asked again, another opener may be making it: %s", error)
        await asyncio.sleep(UNKNOWN_RETRY_S)


def rows_of(result: Any) -> list[CassandraRow]:
    """A result's rows as tuples."""
    return [row.as_tuple() for row in result]


def make_batch(statements: Iterable[Any]) -> CassandraRequest:
    """An unlogged batch: one mutation, if all statements are of one partition."""
    batch = acsylla.create_batch_unlogged()
    for statement in statements:
        batch.add_statement(statement)
    return batch


async def connect(config: CassandraConfig, trace: Trace | None = None) -> Session:
    """A session on the pool of this event loop, or the reason why there is none.

    With `reconnect_on_init`, try again as long as no node answers.
    """
    pause = Backoff(MIN_RECONNECT_S, MAX_RECONNECT_S)
    while True:
        try:
            return Session(await open_pool(config), config, trace)
        except Unreachable as error:
            if not config.reconnect_on_init:
                raise
            delay = pause.next()
            log.warning("%s; next attempt in %.1f s", error, delay)
        await asyncio.sleep(delay)


_Batch = type(acsylla.create_batch_unlogged())
_SERIAL = acsylla.Consistency.SERIAL
