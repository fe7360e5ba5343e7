"""The other sides of queues: procrastinate and PgQueuer on PostgreSQL, Dramatiq on Redis, as their documentations show.

Each puts jobs one by one and, if it can, many in one call; and drains them with its own worker. Finished jobs are
deleted, as Everlog does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import procrastinate
import psycopg
from pgqueuer.db import PsycopgDriver
from pgqueuer.ports.driver import NotifyCallback
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode
from procrastinate.types import JSONDict

from bench import dramatiq_jobs
from bench.own_queue import DATA, PER_CALL
from bench.rounds import Laps, Round
from bench.servers import Postgres, Redis

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]

CONNECTIONS = 12
DRAIN_S = 300.0
LOOK_S = 0.002


class AsyncPeer:
    """A side with an event loop that stays open over the rounds."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def __enter__(self) -> Self:
        self.run(self.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.close())
        self._runner.close()

    async def open(self) -> None:
        """Make the tables."""

    async def close(self) -> None:
        """Let go of the connections."""

    async def put(self) -> None:
        """One job."""
        raise NotImplementedError

    async def put_many(self, count: int) -> None:
        """Many jobs in one call."""
        raise NotImplementedError

    async def drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        """Run what was put, jobs that take this long."""
        raise NotImplementedError

    async def clear(self) -> None:
        """Remove what waits."""
        raise NotImplementedError

    def one_by_one(self, jobs: int) -> Round:
        return self.run(self._one_by_one(jobs))

    async def _one_by_one(self, jobs: int) -> Round:
        clock, latencies = time.perf_counter, []
        started = clock()
        for _ in range(jobs):
            before = clock()
            await self.put()
            latencies.append(clock() - before)
        done = Round(jobs, clock() - started, latencies)
        await self.clear()
        return done

    def together(self, jobs: int) -> Round:
        return self.run(self._together(jobs))

    async def _together(self, jobs: int) -> Round:
        done = await self._put_together(jobs)
        await self.clear()
        return done

    async def _put_together(self, jobs: int) -> Round:
        started = time.perf_counter()
        for first in range(0, jobs, PER_CALL):
            await self.put_many(min(PER_CALL, jobs - first))
        return Round(jobs, time.perf_counter() - started)

    def put_and_drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        """A drain of what it puts itself, before the clock runs."""
        self.run(self._put_together(jobs))
        return self.run(self.drain(jobs, concurrency, seconds))


class Procrastinate(AsyncPeer):
    """procrastinate with its psycopg connector."""

    def __init__(self, server: Postgres) -> None:
        super().__init__()
        connector = procrastinate.PsycopgConnector(conninfo=server.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS)
        self._app = procrastinate.App(connector=connector)
        self._laps = Laps(0)
        self._seconds = 0.0

        @self._app.task(name="work", queue="bench")
        async def work(data: str) -> None:
            await _work(self._laps, self._seconds)

        self._work = work

    async def open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def put(self) -> None:
        await self._work.defer_async(data=DATA)

    async def put_many(self, count: int) -> None:
        jobs: list[JSONDict] = [{"data": DATA}] * count
        await self._work.batch_defer_async(*jobs)

    async def clear(self) -> None:
        await self._app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")

    async def drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        self._laps, self._seconds = Laps(jobs), seconds
        await self._app.run_worker_async(
            queues=["bench"],
            concurrency=concurrency,
            wait=False,
            delete_jobs="always",
            install_signal_handlers=False,
        )
        _check("procrastinate", self._laps)
        return self._laps.round


class ListensApart(PsycopgDriver):
    """PgQueuer's driver holds its connection while it listens, up to a second at a time: so it listens on another."""

    def __init__(self, connection: Connection, listening: Connection) -> None:
        super().__init__(connection)
        self._listener = PsycopgDriver(listening)

    async def add_listener(self, channel: str, callback: NotifyCallback) -> None:
        await self._listener.add_listener(channel, callback)

    async def remove_listener(self, channel: str, callback: NotifyCallback) -> None:
        await self._listener.remove_listener(channel, callback)

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        await self._listener.__aexit__(*error)


class PgQueuer(AsyncPeer):
    """PgQueuer with psycopg; its tables are durable by default."""

    def __init__(self, server: Postgres) -> None:
        super().__init__()
        self._dsn = server.dsn

    async def open(self) -> None:
        self._connection = await self._connect()
        self._queries = Queries(PsycopgDriver(self._connection))
        await self._queries.install()

    async def _connect(self) -> Connection:
        return await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)

    async def close(self) -> None:
        await self._connection.close()

    async def put(self) -> None:
        await self._queries.enqueue("work", DATA.encode())

    async def put_many(self, count: int) -> None:
        payloads: list[bytes | None] = [DATA.encode()] * count
        await self._queries.enqueue(["work"] * count, payloads, [0] * count)

    async def clear(self) -> None:
        await self._queries.clear_queue()

    async def drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        """As many fetched at once as may run at once. Without work there is nothing that a limit would hold back."""
        laps = Laps(jobs)
        connection, listening = await self._connect(), await self._connect()
        try:
            manager = QueueManager(Queries(ListensApart(connection, listening)))

            @manager.entrypoint("work", concurrency_limit=concurrency if seconds else 0)
            async def work(job: Any) -> None:
                await _work(laps, seconds)

            await manager.run(batch_size=concurrency, mode=QueueExecutionMode.drain)
        finally:
            await connection.close()
            await listening.close()
        _check("PgQueuer", laps)
        return laps.round


class Dramatiq:
    """Dramatiq on Redis; its workers are processes of its own command, as many as processors, with threads."""

    def __init__(self, server: Redis) -> None:
        self._server = server
        self._client = server.client()
        self._broker, self._actor = dramatiq_jobs.declare(server.url)

    def close(self) -> None:
        self._broker.close()
        self._client.close()

    def one_by_one(self, jobs: int, sync: str) -> Round:
        self._server.sync(sync)
        clock, latencies = time.perf_counter, []
        started = clock()
        for _ in range(jobs):
            before = clock()
            self._actor.send(DATA, 0.0)
            latencies.append(clock() - before)
        done = Round(jobs, clock() - started, latencies)
        self._broker.flush_all()
        return done

    def put_and_drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        """From the first look at which some jobs are done until none is left, in Redis itself."""
        self._server.sync("everysec")  # the clock does not run yet
        for _ in range(jobs):
            self._actor.send(DATA, seconds)
        self._server.sync("always")
        processes = min(concurrency, os.cpu_count() or 1)
        options = [f"--processes={processes}", f"--threads={concurrency // processes}"]
        with subprocess.Popen(
            [sys.executable, "-m", "dramatiq", "bench.dramatiq_jobs:setup", *options],
            env={**os.environ, dramatiq_jobs.VARIABLE: self._server.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                return self._watch(jobs, process)
            finally:
                process.terminate()
                process.wait()

    def _watch(self, jobs: int, process: subprocess.Popen[bytes]) -> Round:
        first = None
        deadline = time.monotonic() + DRAIN_S
        while True:
            left, now = self._left(), time.perf_counter()
            if first is None and left < jobs:
                first = (left, now)
            if not left:
                assert first is not None
                return Round(first[0], now - first[1])
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Dramatiq's worker left {left:,} of {jobs:,} jobs")
            time.sleep(LOOK_S)

    def _left(self) -> int:
        return int(self._client.hlen(f"dramatiq:{dramatiq_jobs.QUEUE}.msgs"))


async def _work(laps: Laps, seconds: float) -> None:
    """What a job does here: take this long, without work for the processor."""
    laps.begin()
    if seconds:
        await asyncio.sleep(seconds)
    laps.see()


def _check(name: str, laps: Laps) -> None:
    if laps.seen != laps.wanted:
        raise RuntimeError(f"{name} ran {laps.seen:,} of {laps.wanted:,} jobs")
