"""Loops that must not end: whatever ends one, it is logged, remembered, and the loop begins again after a pause.

The invariant: a supervised loop runs, or waits for its next try, until its owner ends it. It makes no difference
whether it raised an error, returned, raised `SystemExit`, or met a `CancelledError` although no one had cancelled it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeVar

import msgspec

from everlog.errors import EverlogError
from everlog.runtime.clock import Clock
from everlog.runtime.retry import Backoff

MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
MAX_ERROR_CHARS = 500

T = TypeVar("T")
LoopState = Literal["running", "restarting", "stopped"]
LoopBody = Callable[[], Awaitable[object]]


class LoopStatus(msgspec.Struct, frozen=True):
    """How a loop is, and since when. `failures` counts what went wrong, also where the loop went on without a restart.

    The last error stays here after the loop has recovered.
    """

    name: str
    state: LoopState = "stopped"
    since_ms: int = 0
    restarts: int = 0
    failures: int = 0
    last_error: str | None = None
    last_error_ms: int | None = None


class LoopOwner(Protocol):
    """What has loops, such as a worker."""

    def status(self) -> list[LoopStatus]: ...


class LoopRecord:
    """What is remembered about a loop, and how long it rests before it begins again; written by one thread."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        logger: logging.Logger,
        min_s: float = MIN_PAUSE_S,
        max_s: float = MAX_PAUSE_S,
    ) -> None:
        self.status = LoopStatus(name, since_ms=clock.now_ms())
        self._clock = clock
        self._logger = logger
        self._backoff = Backoff(min_s, max(min_s, max_s))
        self._pause_s = 0.0
        self._began = 0.0

    def began(self) -> None:
        self._began = self._clock.monotonic()
        self._enter("running")

    def stopped(self) -> None:
        self._enter("stopped")

    def failed(self, error: BaseException | None) -> float:
        """The loop was ended by this error, or without one: how long to wait before it begins again.

        If it ran for longer than it had rested before, it had recovered, and the pauses are short again.
        """
        if self._clock.monotonic() - self._began > self._pause_s:
            self._backoff.reset()
        self._pause_s = self._backoff.next()
        found = error or RuntimeError("it returned, although nothing had stopped it")
        self.note(f"{self.status.name}: the loop begins again in {self._pause_s:.2f} s", found)
        self._enter("restarting")
        self.status = msgspec.structs.replace(self.status, restarts=self.status.restarts + 1)
        return self._pause_s

    def note(self, text: str, error: BaseException) -> None:
        """Something failed: a line in the log, and the last error from now on."""
        log_failure(self._logger, text, error)
        self.status = msgspec.structs.replace(
            self.status,
            failures=self.status.failures + 1,
            last_error=error_text(error)[:MAX_ERROR_CHARS],
            last_error_ms=self._clock.now_ms(),
        )

    def _enter(self, state: LoopState) -> None:
        self.status = msgspec.structs.replace(self.status, state=state, since_ms=self._clock.now_ms())


async def run_supervised(record: LoopRecord, body: LoopBody, may_end: Callable[[], bool] = lambda: False) -> None:
    """Run a loop until this task is cancelled, or until it returns when it may.

    The body is part of this very task: nothing that it raises gets past here.
    """
    task = asyncio.current_task()
    assert task is not None
    try:
        while True:
            record.began()
            error: BaseException | None = None
            try:
                await body()
            except BaseException as failure:
                if asks_to_end(failure):
                    raise
                if task.cancelling():  # it was cancelled, and then its end failed
                    record.note(f"{record.status.name}: the loop did not end well", failure)
                    raise asyncio.CancelledError from failure
                error = failure
            if error is None and may_end():
                return
            pause_s = record.failed(error)
            error = None  # a traceback holds on to the frames of the body
            await asyncio.sleep(pause_s)
    finally:
        record.stopped()


def run_in_thread(record: LoopRecord, body: Callable[[], object], rest: Callable[[float], bool]) -> None:
    """The same for a thread. `rest` waits for some seconds and says whether the loop is to go on; a body that returns
    when it is not has ended as it should."""
    try:
        while True:
            record.began()
            error: BaseException | None = None
            try:
                body()
            except BaseException as failure:  # no one can press Ctrl-C in a thread
                error = failure
            if error is None and not rest(0):
                return
            pause_s = record.failed(error)
            error = None
            if not rest(pause_s):
                return
    finally:
        record.stopped()


class LoopSupervisor:
    """Several loops with one owner. A name is started once."""

    def __init__(self, *, clock: Clock, logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._records: dict[str, LoopRecord] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def start(
        self,
        name: str,
        body: LoopBody,
        *,
        min_s: float = MIN_PAUSE_S,
        max_s: float = MAX_PAUSE_S,
        may_end: bool = False,
    ) -> None:
        """Run a loop from now on; needs a running event loop. One that returns when it may can be started again."""
        if name in self._records or self._closed:
            return
        record = LoopRecord(name, clock=self._clock, logger=self._logger, min_s=min_s, max_s=max_s)
        self._records[name] = record
        task = asyncio.create_task(run_supervised(record, body, lambda: may_end), name=f"everlog {name}")
        self._tasks.append(task)
        if may_end:
            task.add_done_callback(lambda _: self._forget(name, task))

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        if task in self._tasks:  # else all of them are being stopped
            self._tasks.remove(task)
            del self._records[name]

    def status(self) -> list[LoopStatus]:
        """How each loop is, in the order in which they were started."""
        return [record.status for record in list(self._records.values())]

    async def stop(self) -> None:
        """Cancel all loops and wait for their ends. A second call changes nothing."""
        self._closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def outcome_of(work: Awaitable[T]) -> T | BaseException:
    """What it returns or raises, as a value: a task that raises `SystemExit` would end the whole event loop."""
    try:
        return await work
    except BaseException as error:
        if asks_to_end(error):
            raise
        return error


def asks_to_end(error: BaseException) -> bool:
    """Whether an exception is meant for the task that runs: it was cancelled, its coroutine is closed, or it is Ctrl-C.

    Anything else of that kind came from inside: a cancelled future that was awaited, or a `raise`.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, (KeyboardInterrupt, GeneratorExit))


def log_failure(logger: logging.Logger, text: str, error: BaseException) -> None:
    """A warning. Our errors explain themselves; others need their traceback."""
    logger.warning("%s: %s", text, error_text(error), exc_info=None if isinstance(error, EverlogError) else error)


def error_text(error: BaseException) -> str:
    """Our errors explain themselves; of others the kind says more than the text."""
    return str(error) if isinstance(error, EverlogError) else f"{type(error).__name__}: {error}"
