"""What callers may hand in: one check for each kind of argument, the same for every way into the library.

Python in the same process, the blocking twin, the client of a server, HTTP and the command line all come through
these. Ids, seqNrs, positions and tags have constructors of their own (`everlog.core.values`, `everlog.core.tag_names`),
and JSON is checked where it is encoded (`everlog.core.json_text`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise

from everlog.core.events import Event
from everlog.core.values import MAX_ID_BYTES, MAX_SEQ_NR, check_unicode, shown
from everlog.errors import EmptyAppend, InvalidInput, InvalidRange

_APPEND_ID = re.compile(r"[0-9]{1,19}\.[A-Za-z0-9._:~-]{1,250}")


def check_text(what: str, value: str) -> str:
    """Text that is not empty, and not longer than an id may be."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"the {what} is text that is not empty, not {shown(value)}")
    text = check_unicode(what, value)
    size = len(text.encode())
    if size > MAX_ID_BYTES:
        raise InvalidInput(f"the {what} has {size:,} bytes, at most {MAX_ID_BYTES:,} are allowed")
    return text


def check_flag(what: str, value: bool) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is True or False, not {shown(value)}")
    return value


def check_whole(what: str, value: int, *, min_value: int = 0, max_value: int = MAX_SEQ_NR) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not min_value <= value <= max_value:
        raise InvalidRange(f"{what} is a whole number from {min_value} to {max_value}, not {shown(value)}")
    return value


def check_seconds(what: str, value: float | None) -> float | None:
    """A time to wait; None is forever."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidInput(f"{what} is a number of seconds, not below 0, or None; not {shown(value)}")
    return value


def check_shown_offset(value: str | None) -> None:
    """The offset of a projection as it is shown, or None."""
    if value is not None:
        check_text("offset", value)


def check_expire(day: date | None, topics: Collection[str] | None) -> None:
    """Which day is meant, and which topics."""
    if day is not None and (not isinstance(day, date) or isinstance(day, datetime)):
        raise InvalidInput(f"day is a date, not {shown(day)}")
    if topics is None:
        return
    if isinstance(topics, str) or not isinstance(topics, Collection):
        raise InvalidInput(f"topics are a collection of names, not {shown(topics)}")
    for topic in topics:
        check_text("name of a topic", topic)


# Appends


def check_events(events: Sequence[Event]) -> None:
    """At least one, with ascending seqNrs or with none."""
    if not isinstance(events, list):
        raise InvalidInput(f"an append takes an Event or a list of them, not {shown(events)}")
    if not events:
        raise EmptyAppend("an append needs at least one event")
    for event in events:
        if not isinstance(event, Event):
            raise InvalidInput(f"an append takes Events: wrap this in Event(…): {shown(event)}")
    if len(events) > 1:
        given = [event.seq_nr for event in events if event.seq_nr is not None]
        if given and len(given) < len(events):
            raise InvalidInput("give every event of an append a seq_nr, or none of them")
        if any(a >= b for a, b in pairwise(given)):
            raise InvalidRange(f"the seqNrs of an append must ascend: {given[:10]}")


def check_expiry(expire_after: timedelta | None) -> None:
    """A time to live that is positive."""
    if expire_after is None:
        return
    if not isinstance(expire_after, timedelta):
        raise InvalidInput(f"expire_after is a timedelta, not {shown(expire_after)}")
    if expire_after <= timedelta(0):
        raise InvalidInput("expire_after must be positive")


def check_headers(headers: Mapping[str, str] | None) -> None:
    """Text by names that are not ours."""
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers map text to text, not {shown(headers)}")
    for name, text in headers.items():
        if not isinstance(name, str) or not isinstance(text, str) or not name or name.startswith("journal."):
            raise InvalidInput(
                "headers map text to text, and their names are not empty and do not start with 'journal.': "
                f"{shown(name)}"
            )
        if "\0" in check_unicode("name of a header", name):
            raise InvalidInput(f"the name of a header must not contain a zero character: {shown(name)}")
        check_unicode(f"header {shown(name)}", text)


def check_append_id(append_id: str | None) -> None:
    """The id of an append that is repeated."""
    if append_id is not None and not (isinstance(append_id, str) and _APPEND_ID.fullmatch(append_id)):
        raise InvalidInput(f"{shown(append_id)} is not an append id: take it from OutcomeUnknown.append_id")
