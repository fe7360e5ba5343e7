"""`RetryPolicy`: how often a function is tried, and how long it waits in between."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from everlog.core.duration import Duration, milliseconds
from everlog.errors import InvalidInput
from everlog.queues.rules import MAX_COUNTER
from everlog.runtime.retry import pause_after


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a function's jobs are tried again; what is not given is as the queue says.

    `max_attempts`: so many attempts until a failure makes a dead letter; the queue's `max_timeouts` counts, too, so the
    smaller number holds. `backoff`: the pause after the first failure, which doubles with each, up to `max_backoff`.
    `jitter`: each pause is longer or shorter by up to this share of it, so that not all jobs come back at once.

    >>> RetryPolicy(backoff="10s", max_backoff="30s").delay_ms(3, random.Random())
    30000
    """

    max_attempts: int | None = None
    backoff: Duration | timedelta | None = None
    max_backoff: Duration | timedelta | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if attempts is not None and (type(attempts) is not int or not 1 <= attempts <= MAX_COUNTER):
            raise InvalidInput(f"max_attempts is a whole number from 1 to {MAX_COUNTER}, not {attempts!r:.100}")
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise InvalidInput(f"jitter is a share from 0 to 1, not {self.jitter!r:.100}")
        for name, given in (("backoff", self.backoff), ("max_backoff", self.max_backoff)):
            if not (given is None or isinstance(given, str | int | float | timedelta)):
                raise InvalidInput(f"{name} is a duration such as '10s', not {given!r:.100}")
            if given is not None:
                milliseconds(given)
        if self.backoff is None and (self.max_backoff is not None or self.jitter):
            raise InvalidInput("max_backoff and jitter change the pauses of `backoff`: give that, too")
        if self.backoff is not None and self._longest_ms < milliseconds(self.backoff):
            raise InvalidInput(
                f"max_backoff={self.max_backoff!r:.100} is shorter than the first pause, {self.backoff!r:.100}"
            )

    @property
    def _longest_ms(self) -> int:
        """Without a limit of their own pauses grow to a day, or stay as long as the first one."""
        if self.max_backoff is not None:
            return milliseconds(self.max_backoff)
        return max(milliseconds("1d"), 0 if self.backoff is None else milliseconds(self.backoff))

    def allows(self, failures: int) -> bool:
        """Whether there is another attempt after so many failures, as far as this policy says."""
        return self.max_attempts is None or failures < self.max_attempts

    def delay_ms(self, failures: int, chance: random.Random) -> int | None:
        """The pause after so many failures; None: as the queue says."""
        if self.backoff is None:
            return None
        longest_ms = self._longest_ms
        pause = pause_after(failures, milliseconds(self.backoff), longest_ms)
        return min(longest_ms, round(pause * chance.uniform(1 - self.jitter, 1 + self.jitter)))


AS_THE_QUEUE_SAYS = RetryPolicy()
