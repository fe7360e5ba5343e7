"""What a crash left in the outbox is completed, or abandoned if its write never happened.

Hot: from half an hour ago up to the fail-timeout, often. Stale: from the checkpoint, a day back at first, up to where
the hot window begins, now and then. An error of one document does not touch the others: it only holds the checkpoint.
"""

from __future__ import annotations

import logging
from uuid import UUID

import msgspec

from everlog.clock import Clock
from everlog.config import DocumentsConfig
from everlog.documents.completing import Completer
from everlog.documents.ids import time_of
from everlog.documents.paths import QUANTUM_MS, quantum_of
from everlog.documents.store import DocumentStore, Waiting
from everlog.errors import EverlogError

log = logging.getLogger("everlog.documents")

DAY_MS = 86_400_000


class Recovered(msgspec.Struct):
    """What a pass did."""

    completed: int = 0
    abandoned: int = 0
    failed: int = 0
    forgotten: int = 0
    indexes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.completed} events completed, {self.abandoned} abandoned, {self.failed} documents failed, "
            f"{self.indexes} indexes built or dropped"
        )


class Recovery:
    """Looks through windows of the outbox."""

    def __init__(self, store: DocumentStore, completer: Completer, *, clock: Clock, config: DocumentsConfig) -> None:
        self._store = store
        self._completer = completer
        self._clock = clock
        self._config = config

    def _ago(self, seconds: float) -> int:
        return self._clock.now_ms() - round(seconds * 1000)

    async def hot(self) -> Recovered:
        """Complete what is older than the fail-timeout and younger than the hot window; build waiting indexes."""
        first = quantum_of(self._ago(self._config.hot_recovery))
        last_ms = self._ago(self._config.fail_timeout)
        found = Recovered()
        await self._pass(first, quantum_of(last_ms), last_ms, found)
        found.indexes = await self._completer.build_indexes(self._config.index_step)
        return found

    async def stale(self) -> Recovered:
        """Complete what is older than the hot window, from the checkpoint on; remove what is completed for long."""
        now = self._clock.now_ms()
        oldest = quantum_of(self._ago(self._config.stale_recovery))
        last = quantum_of(self._ago(self._config.hot_recovery))
        checkpoint = await self._store.checkpoint()
        first = oldest if checkpoint is None else min(checkpoint + 1, oldest)
        found = Recovered()
        stuck = await self._pass(first, last, (last + 1) * QUANTUM_MS, found)
        # Rows may arrive late from elsewhere: the last day is looked through again every time.
        reached = min(oldest, last) if stuck is None else min(oldest, stuck - 1)
        if reached >= first:
            await self._store.save_checkpoint(reached)
        before = now - round(self._config.transaction_days * DAY_MS)
        while count := await self._store.forget(before):
            found.forgotten += count
        return found

    async def everything(self) -> Recovered:
        """Complete all that is pending, however young: what a start does for what the last run left."""
        found = Recovered()
        first = quantum_of(self._ago(self._config.stale_recovery))
        await self._pass(first, quantum_of(self._clock.now_ms()), self._ago(self._config.fail_timeout), found)
        found.indexes = await self._completer.build_indexes(self._config.index_step)
        return found

    async def _pass(self, first: int, last: int, abandon_ms: int, found: Recovered) -> int | None:
        """Every document with rows in these minutes, each on its own; the first minute that holds a failure."""
        stuck: int | None = None
        seen: set[str] = set()
        async for page in self._store.incomplete(first, last):
            for waiting in page:
                try:
                    if waiting.uri not in seen:
                        seen.add(waiting.uri)
                        found.completed += await self._completer.complete(waiting.uri)
                    if _time(waiting) < abandon_ms:
                        found.abandoned += await self._store.abandon(waiting, self._clock.now_ms())
                except EverlogError as error:
                    found.failed += 1
                    log.warning("recovery of %s failed: %s", waiting.uri, error, extra={"key": waiting.uri})
                    quantum = quantum_of(_time(waiting))
                    stuck = quantum if stuck is None else min(stuck, quantum)
        return stuck


def _time(waiting: Waiting) -> int:
    return time_of(UUID(waiting.uuid))
