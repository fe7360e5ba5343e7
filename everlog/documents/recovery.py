"""What a crash left in the outbox is completed, or abandoned if its write never happened.

Hot: from half an hour ago up to the fail-timeout, often. Stale: from the checkpoints, a day back at first, up to where
the hot window begins, now and then. Every partition of the outbox has a checkpoint of its own. An error of one document
does not touch the others: it only holds the checkpoint of its partition. Several nodes share the partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

from everlog.config import DocumentsConfig
from everlog.core.duration import DAY_S
from everlog.documents.completer import Completer
from everlog.documents.ids import time_of
from everlog.documents.messages import KEPT_S
from everlog.documents.paths import PARTITIONS, QUANTUM_MS, partition_of_uri, quantum_of
from everlog.documents.port import DocumentStore, WaitingTransaction
from everlog.errors import EverlogError
from everlog.runtime.clock import Clock

log = logging.getLogger("everlog.documents")


class RecoveredTransactions(msgspec.Struct):
    """What a pass did."""

    completed: int = 0
    abandoned: int = 0
    failed: int = 0
    forgotten: int = 0
    indexes: int = 0

    def __add__(self, other: RecoveredTransactions) -> RecoveredTransactions:
        return RecoveredTransactions(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def __str__(self) -> str:
        return (
            f"{self.completed} events completed, {self.abandoned} abandoned, {self.failed} documents failed, "
            f"{self.indexes} indexes built or dropped"
        )


class StaleWindow(NamedTuple):
    """What a stale pass looks through: from `starts` of each partition to `last`. It need not come back below `oldest`.

    >>> StaleWindow({1: 10, 2: 7}, 20, 30).first
    7
    """

    starts: Mapping[int, int]
    oldest: int
    last: int

    @property
    def first(self) -> int:
        return min(self.starts.values(), default=self.last + 1)

    @property
    def abandon_ms(self) -> int:
        """All writes of the window are older than this."""
        return (self.last + 1) * QUANTUM_MS

    def has(self, waiting: WaitingTransaction) -> bool:
        """Whether a row is of this window."""
        return quantum_of(time_of_waiting(waiting)) >= self.starts.get(partition_of_uri(waiting.uri), self.last + 1)

    def reached(self, stuck: Mapping[int, int]) -> dict[int, int]:
        """The checkpoints after the pass: before the first minute that holds a failure, and never within the last day,
        because rows may arrive late from elsewhere: that is looked through again every time."""
        latest = min(self.oldest, self.last)
        found = {name: min(latest, stuck[name] - 1) if name in stuck else latest for name in self.starts}
        return {name: quantum for name, quantum in found.items() if quantum >= self.starts[name]}


class OutboxRecovery:
    """Looks through windows of the outbox. `owns`: whether a partition is this node's."""

    def __init__(self, store: DocumentStore, completer: Completer, *, clock: Clock, config: DocumentsConfig) -> None:
        self._store = store
        self._completer = completer
        self._clock = clock
        self._config = config
        self.owns: Callable[[int], bool] = lambda partition: True

    def _own(self) -> set[int]:
        return {partition for partition in range(PARTITIONS) if self.owns(partition)}

    def _ago(self, seconds: float) -> int:
        return self._clock.now_ms() - round(seconds * 1000)

    async def hot(self) -> RecoveredTransactions:
        """Complete what is older than the fail-timeout and younger than the hot window; build waiting indexes."""
        first = quantum_of(self._ago(self._config.hot_recovery_s))
        last_ms = self._ago(self._config.fail_timeout_s)
        found = RecoveredTransactions()
        await self._pass(first, quantum_of(last_ms), last_ms, found)
        found.indexes = await self._completer.build_indexes(self._config.index_step)
        return found

    async def stale(self) -> RecoveredTransactions:
        """Complete what is older than the hot window, from the checkpoints on; remove what was completed long ago."""
        window = await self.window()
        found = RecoveredTransactions()
        stuck: dict[int, int] = {}
        async for page in self._store.incomplete(window.first, window.last, window.starts):
            await self.recover([one for one in page if window.has(one)], window.abandon_ms, found, stuck)
        await self._store.save_checkpoints(window.reached(stuck))
        found.forgotten = await self.forget()
        return found

    async def window(self) -> StaleWindow:
        """What a stale pass has to look through now."""
        oldest = quantum_of(self._ago(self._config.stale_recovery_s))
        checkpoints = await self._store.checkpoints()
        starts = {name: min(checkpoints.get(name, oldest - 1) + 1, oldest) for name in self._own()}
        return StaleWindow(starts, oldest, quantum_of(self._ago(self._config.hot_recovery_s)))

    async def forget(self) -> int:
        """Remove outbox rows that were completed long ago, and messages that nothing asks for any more."""
        before = self._ago(self._config.transaction_days * DAY_S)
        total = 0
        while count := await self._store.forget(before):
            total += count
        while await self._store.forget_messages(self._ago(KEPT_S)):
            pass
        return total

    async def everything(self) -> RecoveredTransactions:
        """Complete all that is pending, however young: what a start does for what the last run left."""
        found = RecoveredTransactions()
        first = quantum_of(self._ago(self._config.stale_recovery_s))
        await self._pass(first, quantum_of(self._clock.now_ms()), self._ago(self._config.fail_timeout_s), found)
        found.indexes = await self._completer.build_indexes(self._config.index_step)
        return found

    async def _pass(self, first: int, last: int, abandon_ms: int, found: RecoveredTransactions) -> None:
        async for page in self._store.incomplete(first, last, self._own()):
            await self.recover(page, abandon_ms, found, {})

    async def recover(
        self, rows: Collection[WaitingTransaction], abandon_ms: int, found: RecoveredTransactions, stuck: dict[int, int]
    ) -> None:
        """Every document with such rows, each on its own; `stuck`: by partition, the first minute with a failure."""
        failures: dict[str, EverlogError] = {}
        seen: set[str] = set()
        for waiting in rows:
            try:
                if waiting.uri not in seen:
                    seen.add(waiting.uri)
                    found.completed += await self._completer.complete(waiting.uri)
                if waiting.uri not in failures and time_of_waiting(waiting) < abandon_ms:
                    found.abandoned += await self._store.abandon(waiting, self._clock.now_ms())
            except EverlogError as error:
                failures[waiting.uri] = error
                found.failed += 1
                log.warning("recovery of %s failed: %s", waiting.uri, error, extra={"key": waiting.uri})
            if waiting.uri in failures:
                partition, quantum = partition_of_uri(waiting.uri), quantum_of(time_of_waiting(waiting))
                stuck[partition] = min(quantum, stuck.get(partition, quantum))


def time_of_waiting(waiting: WaitingTransaction) -> int:
    """When the write was begun, in milliseconds."""
    return time_of(UUID(waiting.uuid))
