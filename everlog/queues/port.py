"""Where queues are kept: one small interface, and what every store does in the same way, which is waiting."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from everlog.errors import EverlogError, NotTransactional
from everlog.queues.declaration import Declaration
from everlog.queues.listeners import GRACE_MS, Listeners, listener_name
from everlog.queues.operations import AskDue, Claim, DueAnswer, Operation, Put, PutAnswer, QueueAnswer, Sweep
from everlog.queues.rows import Flag, Packet
from everlog.queues.webhook import Webhook
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.supervisor import LoopRecord, LoopStatus, outcome_of, run_supervised

logger = logging.getLogger("everlog.queues")

POLL_S = 5.0
# How often an idle process looks for what other processes have done.
LOOK_S = 0.01
PUT_AT_ONCE = 1_000
# How often a queue is made anew for one call, if others delete it each time.
MAX_MAKES = 20
# So few that what they change fits into one batch of any store.
SWEEP = 200


class QueueStore(ABC):
    """Keeps queues. `execute` answers when what it did is durable."""

    look_s: float | None = None
    # Whether any process can count a queue's jobs: on a cluster, only the one that has the queue.
    counts_anywhere = True
    # Whether `totals` has what other processes did, too.
    totals_are_shared = False

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.configured: set[str] = set()
        self._wakers: dict[str, Waker] = {}
        self.webhook: Webhook | None = None

    @abstractmethod
    async def declare(self, wanted: Declaration) -> Declaration:
        """Make a queue, or change what it is declared to be; what it is now."""

    @abstractmethod
    async def declared(self, name: str) -> Declaration | None:
        """What a queue is declared to be; None if there is none of that name."""

    @abstractmethod
    async def delete(self, name: str, *, running: bool = False) -> int:
        """Remove a queue with all that it holds; how many jobs went. QueueNotFound, or JobsRunning unless `running`.

        A deletion that was cut off can be said again, and is finished then.
        """

    def forget(self, name: str) -> None:  # noqa: B027, most stores remember nothing
        """What this process remembers of a queue may be out of date."""

    @abstractmethod
    async def names(self) -> list[str]: ...

    async def in_use(self) -> list[str]:
        """The queues that this process may look at now and then, without taking them from another process."""
        return await self.names()

    @abstractmethod
    async def execute(self, name: str, operation: Operation) -> QueueAnswer:
        """Do one thing with a queue, in one step with all that it changes."""

    async def execute_all(self, name: str, operations: Sequence[Operation]) -> list[QueueAnswer | BaseException]:
        """Do several things that do not depend on each other: of each what it answers, or what it raises."""
        return await asyncio.gather(*(outcome_of(self.execute(name, operation)) for operation in operations))

    async def put_all(self, name: str, packets: Sequence[Packet]) -> list[PutAnswer]:
        """Put jobs, those of one key in their order; an answer for each."""
        answers: list[Any] = []
        for first in range(0, len(packets), PUT_AT_ONCE):
            puts = [self.execute(name, Put(packet)) for packet in packets[first : first + PUT_AT_ONCE]]
            answers += await asyncio.gather(*puts, return_exceptions=True)
            failed = [answer for answer in answers if isinstance(answer, BaseException)]
            if failed:
                raise failed[0]
        return answers

    def put_in(self, connection: sqlite3.Connection, name: str, packet: Callable[[Declaration], Packet]) -> PutAnswer:
        """Put a job inside a transaction of the caller's: it is there if and only if that transaction commits."""
        raise NotTransactional("only queues in SQLite files take jobs inside a transaction of yours")

    @abstractmethod
    def sibling(self) -> QueueStore:
        """The same store for another thread and its event loop; to be closed too."""

    @abstractmethod
    def counted(self, name: str) -> Counter[str]:
        """What this process did with a queue, by kind."""

    async def totals(self, name: str) -> Counter[str]:
        """What was done with a queue, by kind: by this process, or by all if `totals_are_shared`, some of it later."""
        return self.counted(name)

    async def is_unowned(self, name: str) -> bool:
        """Whether a part of the queue has no owner where it needs one: using it would make this process the owner."""
        return False

    async def tend(self, name: str) -> None:
        """Upkeep that is due now and then, also while no worker claims: turn over what is overdue or has expired."""
        while cast(int, await self.execute(name, Sweep(SWEEP))) >= SWEEP:
            pass

    def changes(self, name: str) -> object:
        """Something that differs when another process may have changed the queue."""
        return None

    async def wait(self, name: str, listener: str, seconds: float) -> bool:
        """Wait until there may be work: True for a wake-up, False after `seconds`."""
        return await self.waker(name).wait(listener, seconds)

    def waker(self, name: str) -> Waker:
        found = self._wakers.get(name)
        if found is None:
            found = self._wakers[name] = Waker(self, name)
        return found

    def wake(self, name: str, operation: Operation | None = None) -> None:
        """Something was written: listeners may have to be woken."""
        found = self._wakers.get(name)
        if found is not None:
            if isinstance(operation, Claim):
                found.listeners.claimed(operation.owner)
            found.wake()

    def announce(self, name: str, raised: Sequence[Flag]) -> None:
        """Flags that were not open before: a line in the log, and a call of the webhook. From any thread."""
        for flag in raised:
            logger.warning("the queue %s raises the flag %s: see 'everlog queue flags %s'", name, flag.reason, name)
            if self.webhook is not None:
                self.webhook.tell(name, flag)

    def status(self) -> list[LoopStatus]:
        """The loops that this store has in this process; those of workers are shown by these."""
        return [found.status() for found in list(self._wakers.values())]

    async def close(self) -> None:
        for found in self._wakers.values():
            found.close()
        self._wakers.clear()
        webhook, self.webhook = self.webhook, None
        if webhook is not None:
            await asyncio.to_thread(webhook.close)


class Waker:
    """Wakes the listeners of one queue in this process: at once for what is due, by a timer for what will be."""

    def __init__(self, store: QueueStore, name: str) -> None:
        self.listeners = Listeners()
        self._store = store
        self._name = name
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._record = LoopRecord(f"wake-ups of {name}", clock=store.clock, logger=logger)
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._changed.set()

    def status(self) -> LoopStatus:
        return self._record.status

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def wait(self, listener: str, seconds: float) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if listener in self._waiting:
            listener = listener_name(listener, str(next(self._numbers)))
        self._waiting[listener] = future
        self.listeners.listen(listener)
        self.wake()
        if self._task is None or self._task.done():
            watch = run_supervised(self._record, self._watch, lambda: True)
            self._task = asyncio.create_task(watch, name=f"everlog-waker-{self._name}")
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[listener]
            if not future.done() or future.cancelled():
                self.listeners.leave(listener)

    async def _watch(self) -> None:
        """Runs while a listener waits."""
        while self._waiting:
            self._changed.clear()
            seen = self._store.changes(self._name)
            next_ms = await self._look()
            while not self._changed.is_set() and self._waiting:
                seconds = self._pause(next_ms)
                if seconds <= 0:
                    break
                try:
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()
                except TimeoutError:
                    if self.listeners.pending or self._store.changes(self._name) != seen:
                        break

    async def _look(self) -> int | None:
        now = self._store.clock.now_ms()
        try:
            answer = await self._store.execute(self._name, AskDue(self.listeners.wanted(now)))
        except EverlogError as error:  # listeners ask again by themselves, later than they could
            logger.info("%s: what is due is not known now: %s", self._name, error)
            return None
        assert isinstance(answer, DueAnswer)
        for name in self.listeners.wake(answer.due, now):
            future = self._waiting.get(name)
            if future is not None and not future.done():
                future.set_result(True)
        return answer.next_ms

    def _pause(self, next_ms: int | None) -> float:
        longest = self._store.look_s or POLL_S
        if self.listeners.pending:  # one that never claims must not keep others waiting
            longest = min(longest, GRACE_MS / 1000)
        if next_ms is None:
            return longest
        # A timer may fire a little early; then one more short wait follows, never a loop without one.
        return min(longest, (next_ms - self._store.clock.now_ms()) / 1000)
