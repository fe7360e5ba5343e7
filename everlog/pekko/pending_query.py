"""The one query of a stage that is under way, asked again if it fails."""

from __future__ import annotations

import logging
import random

from everlog.errors import EverlogError
from everlog.pekko.port import AskQuery, Now, StageFailed, TableQuery, Wait
from everlog.pekko.settings import StageSettings
from everlog.runtime.retry import pause_after

logger = logging.getLogger("everlog.pekko")


class PendingQuery:
    """The query under way, and the pause before it is asked once more.

    A retry inside the stage is cheaper than a restart of the stream, and keeps what is known of every journal.
    """

    def __init__(self, settings: StageSettings, chance: random.Random) -> None:
        self._settings = settings
        self._chance = chance
        self._tries = 0
        self._retry_at = 0
        self.query: TableQuery | None = None
        self.error: EverlogError | None = None

    def ask(self, query: TableQuery) -> AskQuery:
        assert self.query is None, "one query at a time"
        self.query = query
        return AskQuery(query)

    def busy(self, now: Now) -> AskQuery | Wait | StageFailed | None:
        """What to do about the query under way; None if there is none."""
        if self.error is not None:
            return StageFailed(self.error)
        if self.query is None:
            return None
        return Wait(self._retry_at) if now.steady < self._retry_at else AskQuery(self.query)

    def answered(self) -> TableQuery:
        query, self.query = self.query, None
        assert query is not None, "an answer without a question"
        self._tries = self._retry_at = 0
        return query

    def failed(self, error: EverlogError, now: Now) -> None:
        """Try again later; it is over at once if that cannot help, or if it was tried often enough."""
        self._tries += 1
        if not error.retriable or self._tries == self._settings.retry_attempts:
            self.error = error
            return
        pause = pause_after(self._tries, self._settings.min_retry_ms, self._settings.max_retry_ms)
        pause = round(pause * (1 + self._chance.uniform(0, self._settings.retry_jitter)))
        logger.warning("try %d failed, the next one follows in %d ms: %s", self._tries, pause, error)
        self._retry_at = now.steady + pause

    def give_up(self) -> None:
        """Drop the query under way: its answer is no longer needed."""
        self.query = None
        self._tries = self._retry_at = 0
