"""Regular expressions from outside: none may keep the server busy.

RE2 takes time in proportion to the text times the size of the compiled pattern, and never goes back. It has no
back-references and no look-around, and its classes `\\d`, `\\w`, `\\s` and `\\b` know ASCII alone. As a rule it takes
1 to 4 ns for a character. A pattern may have too many states for that: then up to 12 ns for each character and
instruction. A program of at most 18 instructions never has. Any other search is begun only where there is room for the
worst, and what it has taken is charged behind it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from everlog.core.bounded_map import BoundedMap
from everlog.documents.filters.budget import STEP_NS, Budget
from everlog.errors import FilterTooExpensive, InvalidDocument, MissingExtra

try:
    import re2
except ImportError as error:
    raise MissingExtra("server") from error

MAX_PATTERN = 500
MAX_MEMORY_BYTES = 1024 * 1024  # of one compiled pattern
MAX_PATTERNS = 128  # as many as re2 itself keeps
MAX_WORK = 50_000_000  # characters times instructions of the compiled pattern, in one search: at worst half a second
SMALL_PROGRAM = 18
CERTAIN_WORK = 10_000  # less is not worth to be measured
PIECE_STEPS = 100  # of a split
COMPILE_STEPS = 40  # for each character of a pattern

_ESCAPED = re.compile(r"\\.", re.DOTALL)
_REPEATS = re.compile(r"[*+{]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_REMEDIES = (
    (
        "invalid perl operator",
        "look-around and its like are not supported: join several 'like' and 'not like' by 'and'",
    ),
    ("invalid escape sequence", "back-references are not supported, and the end of the text is \\z"),
    ("invalid repetition size", "a repetition is of at most 1,000, inner ones multiplied"),
    ("pattern too large", "use fewer and smaller repetitions"),
)


class Pattern(NamedTuple):
    """A compiled pattern. `repeats`: whether an occurrence may be of any length."""

    compiled: Any
    repeats: bool

    def search(self, text: str, budget: Budget) -> bool | None:
        """Whether it is found in the text; None if the text is no valid Unicode."""
        if not _is_valid(text):
            return None
        return self._charged(len(text), budget, self.compiled.search, text) is not None

    def split(self, text: str, budget: Budget) -> list[str] | None:
        """The pieces of the text between its occurrences; None as above.

        Each occurrence is a search of its own. One that may be of any length may look at all of the rest each time.
        """
        if not _is_valid(text):
            return None
        budget.build(len(text))
        pieces: list[str] = []
        at = 0
        places = self.compiled.finditer(text)
        while True:
            if self.repeats or not pieces:
                found = self._charged(len(text) - at, budget, next, places, None)
            else:
                found = next(places, None)
            if found is None:
                return [*pieces, text[at:]]
            pieces += (text[at : found.start()], *(group or "" for group in found.groups()))
            at = found.end()
            budget.take(PIECE_STEPS)

    def _charged(self, length: int, budget: Budget, search: Callable[..., Any], *arguments: Any) -> Any:
        """Search in a text of this length."""
        size: int = self.compiled.programsize
        if size * length > MAX_WORK:
            raise FilterTooExpensive(
                f"a text of {length:,} characters is too long for this pattern, which has {size:,} instructions: "
                "use fewer and smaller repetitions"
            )
        paid = length >> 4
        budget.take(paid)
        if size <= SMALL_PROGRAM or size * length <= CERTAIN_WORK:
            return search(*arguments)
        budget.make_room(size * length >> 3)
        started = time.thread_time_ns()
        found = search(*arguments)
        budget.take(max(0, (time.thread_time_ns() - started) // STEP_NS - paid))
        return found


_known: BoundedMap[str, Pattern] = BoundedMap(MAX_PATTERNS)


def _is_valid(text: str) -> bool:
    """Whether the text has no half of a surrogate pair: it has no UTF-8 form, which RE2 needs."""
    return text.isascii() or _SURROGATE.search(text) is None


def check_pattern(text: str) -> Pattern:
    """The pattern, or InvalidDocument if it cannot be used."""
    known = _known.get(text)
    if known is not None:
        return known
    try:
        return _known.put(text, _compile(text))
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        remedy = next((f"; {remedy}" for start, remedy in _REMEDIES if reason.startswith(start)), "")
        message = f"{text[:50]!r} is not a regular expression of RE2: {reason}{remedy}"
        raise InvalidDocument("invalid-filter", message) from error


def pay_pattern(text: str, budget: Budget) -> Pattern:
    """The same while a filter is evaluated: a pattern that is not known costs its compilation."""
    if text not in _known:
        budget.take(COMPILE_STEPS * min(len(text), MAX_PATTERN))
    return check_pattern(text)


def _compile(text: str) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise InvalidDocument("invalid-filter", f"a regular expression has at most {MAX_PATTERN} characters")
    if not _is_valid(text):
        raise InvalidDocument("invalid-filter", f"{text[:50]!r} has half of a surrogate pair in it: remove it")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY_BYTES
    return Pattern(re2.compile(text, options=options), _REPEATS.search(_ESCAPED.sub("", text)) is not None)
