"""What the methods of queues are given by their callers: looked at first, so that nothing odd is stored or sent."""

from __future__ import annotations

import math
from typing import Any

from everlog.core.duration import MAX_MS
from everlog.errors import InvalidHandle, InvalidInput
from everlog.queues.operations import Handle

MAX_TEXT = 1000
MAX_NUMBER = 2**63 - 1


def check_limit(what: str, limit: object, max_limit: int) -> int:
    """How many: a whole number from 1 on."""
    if type(limit) is not int or not 1 <= limit <= max_limit:
        raise InvalidInput(f"{what} 1 to {max_limit}, not {limit!r:.100}")
    return limit


def check_text(what: str, text: object) -> str:
    """A name that others will read: at most a thousand characters, all of which can be written."""
    if not isinstance(text, str) or len(text) > MAX_TEXT or not _is_writable(text):
        raise InvalidInput(f"{what} is text of at most {MAX_TEXT} characters, not {text!r:.100}")
    return text


def check_reason(reason: object) -> str | None:
    """Why something was done. It may come from an exception, so it is cut, and made writable, rather than refused."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise InvalidInput(f"a reason is text, not {reason!r:.100}")
    found = reason[:MAX_TEXT]
    return found if _is_writable(found) else found.encode("utf-8", "backslashreplace").decode()[:MAX_TEXT]


def check_choice(what: str, value: object) -> bool:
    """True or False, and not what stands for it elsewhere: "no" is true in Python."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is True or False, not {value!r:.100}")
    return value


def check_seconds(what: str, seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_MS / 1000:
        raise InvalidInput(f"{what} is a number of seconds from 0 to ten years, not {seconds!r:.100}")
    assert math.isfinite(seconds)
    return seconds


def check_handle(handle: object) -> Handle:
    """A handle: a job is recognized by the caller of this."""
    if not isinstance(handle, Handle) or not all(type(one) is int and 0 <= one <= MAX_NUMBER for one in handle):
        raise InvalidHandle(f"a job, or its Handle(entry, token), is needed here, not {handle!r:.100}")
    return handle


def check_place(place: Any, kinds: tuple[type, ...]) -> Any:
    """Where a page ends, if one is given: its numbers are such that every store can hold them."""
    if place is None:
        return None
    fits = isinstance(place, tuple | list) and tuple(map(type, place)) == kinds
    if not fits or not all(not isinstance(one, int) or 0 <= one <= MAX_NUMBER for one in place):
        raise InvalidInput(f"a page goes on behind a job of the page before it, not behind {place!r:.100}")
    return tuple(place)


def _is_writable(text: str) -> bool:
    """Whether it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
