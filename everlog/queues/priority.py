"""Priorities: 0 runs first, 255 last."""

from __future__ import annotations

from enum import IntEnum

from everlog.errors import InvalidPriority

DEFAULT_PRIORITY = 128
LOWEST = 255


class Priority(IntEnum):
    """Names for some of the 256 priorities.

    >>> Priority.NEW_PAGE < Priority.UPDATES
    True
    """

    NOW = 0
    IMPORTANT = 10
    NEW_PAGE = 20
    RESET = 50
    UPDATES = 180
    SLOW = 200
    REVIEW = 230
    TIME_ALLOWS = 255


def check_priority(value: object) -> int:
    """A priority, or an error: it is never cut to fit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidPriority(f"a priority is a whole number, not {value!r}")
    if not 0 <= value <= LOWEST:
        raise InvalidPriority(f"a priority is between 0 (first) and {LOWEST} (last), not {value}")
    return int(value)


def parse_priority(text: str) -> int:
    """A priority as people write it: a number, or a name.

    >>> parse_priority("new-page"), parse_priority("7")
    (20, 7)
    """
    name = text.strip().upper().replace("-", "_")
    if name in Priority.__members__:
        return int(Priority[name])
    try:
        return check_priority(int(text))
    except ValueError as error:
        names = ", ".join(Priority.__members__)
        raise InvalidPriority(f"a priority is a number from 0 to {LOWEST} or one of {names}, not {text!r}") from error
