"""Failures that repeat: the first is logged with its traceback, the others once in a while, in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

REPEAT_INTERVAL_S = 60.0
# A failure after this much silence counts as new.
FORGET_S = 3600.0
# A log with more tracebacks than this is not read.
MAX_CAUSES = 50
_OTHERS = object()


class RepeatLog:
    """Logs what fails again and again without flooding the log.

    Failures with the same `kind` and `cause` are one: the first comes with its traceback, then one line at most every
    `interval_s` seconds says how often it has happened since. Causes may take turns. If a kind has very many, the last
    ones count as one.
    """

    def __init__(
        self, logger: logging.Logger, now: Callable[[], float], *, interval_s: float = REPEAT_INTERVAL_S
    ) -> None:
        self._logger = logger
        self._now = now
        self._interval_s = interval_s
        self._seen: dict[str, dict[Hashable, Repeated]] = {}

    def warn(self, kind: str, cause: Hashable, text: str, error: BaseException | None = None) -> None:
        """Something failed. `error` is logged as a traceback, the first time."""
        causes, now = self._seen.setdefault(kind, {}), self._now()
        if cause not in causes and len(causes) >= MAX_CAUSES - 1:
            for one in [one for one, found in causes.items() if now - found.last > FORGET_S]:
                del causes[one]
            cause = _OTHERS if len(causes) >= MAX_CAUSES - 1 else cause
        seen = causes.get(cause)
        if seen is None or now - seen.last > FORGET_S:
            causes[cause] = Repeated(now)
            self._logger.warning("%s", text, exc_info=error)
            return
        seen.count += 1
        seen.last = now
        if now - seen.said >= self._interval_s:
            seen.said = now
            self._logger.warning("%s (%d times in %.0f s)", text, seen.count, now - seen.since)

    def clear(self, kind: str) -> None:
        """It went well: the next failure of this kind is a first one."""
        self._seen.pop(kind, None)


class Repeated:
    """One failure, and how often it happened."""

    __slots__ = ("count", "last", "said", "since")

    def __init__(self, now: float) -> None:
        self.count = 1
        self.since = self.said = self.last = now
