"""What becomes of an envelope whose handler fails."""

from __future__ import annotations

import msgspec

from everlog.errors import InvalidProjection
from everlog.projections.settings import check_duration

DEFAULT_RETRIES = 5
DEFAULT_DELAY_S = 1.0


class Recovery(msgspec.Struct, frozen=True):
    """How often a failed envelope is tried again, after which delay, and whether it is skipped in the end.

    >>> Recovery.retry_and_skip(3, 0.5).attempts
    4
    """

    retries: int = 0
    delay_s: float = 0.0
    skips: bool = False

    @property
    def attempts(self) -> int:
        """How often a handler is called for one envelope at most."""
        return 1 + self.retries

    @property
    def name(self) -> str:
        if self.retries:
            return f"retry and {'skip' if self.skips else 'fail'}"
        return "skip" if self.skips else "fail"

    @classmethod
    def fail(cls) -> Recovery:
        """The stream fails, and starts again from the stored offset after a backoff."""
        return cls()

    @classmethod
    def skip(cls) -> Recovery:
        """The envelope (or the whole group) becomes a dead letter; its offset counts as done."""
        return cls(skips=True)

    @classmethod
    def retry_and_fail(cls, retries: int = DEFAULT_RETRIES, delay_s: float = DEFAULT_DELAY_S) -> Recovery:
        """Up to `retries` more attempts, `delay_s` seconds before each, then as `fail`."""
        return _retrying(retries, delay_s, skips=False)

    @classmethod
    def retry_and_skip(cls, retries: int = DEFAULT_RETRIES, delay_s: float = DEFAULT_DELAY_S) -> Recovery:
        """Up to `retries` more attempts, `delay_s` seconds before each, then as `skip`."""
        return _retrying(retries, delay_s, skips=True)


def _retrying(retries: int, delay_s: float, *, skips: bool) -> Recovery:
    """Without any retries both variants are `fail`, as in Akka Projection: nothing is dropped by a zero."""
    if isinstance(retries, bool) or not isinstance(retries, int):
        raise InvalidProjection(f"retries is a whole number, not {retries!r}")
    check_duration("the delay before a retry", delay_s, zero=True)
    return Recovery(retries, delay_s, skips) if retries >= 1 else Recovery()
