"""The life of one projection instance as a state machine: when it starts again, and what observers hear.

Pure: time and randomness are arguments. What an observer hears is always
`started (error)* (failed)? stopped`, any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from everlog.errors import InvalidProjection
from everlog.projections.settings import check_count, check_duration
from everlog.runtime.retry import pause_after

LifecyclePhase = Literal["new", "running", "paused", "backoff", "completed", "failed", "stopped"]
ENDED: tuple[LifecyclePhase, ...] = ("completed", "failed", "stopped")


class Restart(msgspec.Struct, frozen=True):
    """How a failed stream starts again: after `min_s` seconds, twice as long each time, at most `max_s`.

    `random_factor`: each pause is longer by a random share of up to this much, so that not all start at once.
    `max_restarts`: after this many in a row the instance gives up; 0 means none, None without end. The count begins
    anew once a stream ran longer than `min_s`.
    """

    min_s: float = 3.0
    max_s: float = 30.0
    random_factor: float = 0.2
    max_restarts: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_s", "max_s", "random_factor"):
            check_duration(name, getattr(self, name), zero=True)
        if self.min_s > self.max_s:
            raise InvalidProjection(f"restarts after {self.min_s} to {self.max_s} s: min_s must not be above max_s")
        if self.random_factor > 1:
            raise InvalidProjection(f"random_factor is between 0 and 1, not {self.random_factor}")
        if self.max_restarts is not None:
            check_count("max_restarts, unless it is None for no end,", self.max_restarts, least=0)

    def delay(self, restart: int, chance: float) -> float:
        """The pause before restart number 1, 2, …; `chance` is a random number from 0 to 1."""
        return pause_after(restart, self.min_s, self.max_s) * (1.0 + chance * self.random_factor)


class Lifecycle:
    """Where an instance is. Each method is something that happens, and returns what observers are told."""

    def __init__(self, restart: Restart, chance: Callable[[], float]) -> None:
        self.phase: LifecyclePhase = "new"
        self.restarts = 0  # in a row
        self.until: float | None = None  # the end of a backoff
        self._restart = restart
        self._chance = chance
        self._started = 0.0

    def start(self, now: float) -> list[str]:
        """A stream begins."""
        assert self.phase in ("new", "backoff"), self.phase
        self.phase, self.until, self._started = "running", None, now
        return ["started"]

    def pause(self) -> None:
        """The stream stays silent until something else is wanted."""
        assert self.phase == "running", self.phase
        self.phase = "paused"

    def fail(self, now: float) -> list[str]:
        """The stream failed: start again after a backoff, or give up."""
        assert self.phase in ("running", "paused"), self.phase
        if now - self._started > self._restart.min_s:
            self.restarts = 0
        limit = self._restart.max_restarts
        if limit is not None and self.restarts >= limit:
            self.phase = "failed"
        else:
            self.restarts += 1
            self.phase = "backoff"
            self.until = now + self._restart.delay(self.restarts, self._chance())
        return ["failed", "stopped"]

    def complete(self) -> list[str]:
        """The source ended: nothing more will come, and nothing starts again."""
        assert self.phase == "running", self.phase
        self.phase = "completed"
        return ["stopped"]

    def begin_anew(self) -> list[str]:
        """What is wanted changed: the stream ended in good order and starts again at once."""
        assert self.phase in ("running", "paused"), self.phase
        self.phase = "new"
        return ["stopped"]

    def stop(self) -> list[str]:
        """It is told to end; also during a backoff, at once."""
        heard = ["stopped"] if self.phase in ("running", "paused") else []
        if self.phase not in ENDED:
            self.phase = "stopped"
            self.until = None
        return heard
