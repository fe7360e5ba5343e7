"""Work that repeats: a small service with start, stop and status. `everlog up` runs several."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

from everlog.runtime.clock import Clock
from everlog.runtime.supervisor import asks_to_end, error_text, log_failure

logger = logging.getLogger("everlog.service")
T = TypeVar("T")


async def finish(ending: Coroutine[Any, Any, T]) -> T:
    """Await what must not be left halfway, such as a stop: a caller that is cancelled meanwhile waits for its end.

    One that is cancelled twice does not; the ending goes on alone.

    >>> asyncio.run(finish(asyncio.sleep(0, "closed")))
    'closed'
    """
    task = asyncio.create_task(ending)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class StatusStore(Protocol):
    """Keeps the status of services, so that other processes can show it."""

    async def save_status(self, name: str, status: bytes, now_ms: int) -> None: ...


class ServiceStatus(msgspec.Struct, frozen=True):
    """How often a service has run, and what became of the last time."""

    name: str
    running: bool = False
    runs: int = 0
    failures: int = 0
    last_run_ms: int | None = None
    last_result: str | None = None
    last_error: str | None = None


class Service:
    """Runs `work` at once and then every `every` seconds, until it is stopped. An error does not end it."""

    def __init__(
        self, name: str, every: float, work: Callable[[], Awaitable[object]], *, clock: Clock, store: StatusStore
    ) -> None:
        self._every = every
        self._work = work
        self._clock = clock
        self._store = store
        self._status = ServiceStatus(name)
        self._stopping = asyncio.Event()
        self._finished = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; needs a running event loop. A second call changes nothing."""
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.create_task(self._run(), name=f"everlog-{self._status.name}")

    async def stop(self) -> None:
        """Let the run under way finish, then end."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            await finish(asyncio.wait([task]))  # a caller that is cancelled must not cut the run off
            await task

    def status(self) -> ServiceStatus:
        """What it did so far."""
        running = self._task is not None and not self._task.done()
        return msgspec.structs.replace(self._status, running=running)

    async def ran(self, times: int) -> None:
        """Wait until it has run `times` times since it was made."""
        async with self._finished:
            await self._finished.wait_for(lambda: self._status.runs >= times)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._run_once()
            try:
                async with asyncio.timeout(self._every):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _run_once(self) -> None:
        before = self._status
        now_ms = self._clock.now_ms()
        try:
            result, error = await self._work(), None
        except BaseException as failure:  # whatever it is, the next run may go well
            if asks_to_end(failure):
                raise
            result, error = None, error_text(failure)
            log_failure(logger, f"{before.name} failed and will be tried again", failure)
        self._status = msgspec.structs.replace(
            before,
            runs=before.runs + 1,
            failures=before.failures + (error is not None),
            last_run_ms=now_ms,
            last_result=before.last_result if result is None else str(result),
            last_error=error,
        )
        await self._save(now_ms)
        async with self._finished:
            self._finished.notify_all()

    async def _save(self, now_ms: int) -> None:
        """For other processes to show; a store that cannot be written now is no reason to end."""
        try:
            await self._store.save_status(self._status.name, msgspec.json.encode(self.status()), now_ms)
        except BaseException as failure:
            if asks_to_end(failure):
                raise
            logger.warning("the status of %s was not saved: %s", self._status.name, error_text(failure))
