"""Regular expressions from outside: none may keep the server busy.

Python's engine tries alternatives one after the other, so that some patterns take time that grows exponentially, or
with a high power of the text's length. So it is used only where that cannot be much; elsewhere an engine of ours is,
which takes time in proportion to the text.
"""

from __future__ import annotations

import functools
import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from typing import Any, NamedTuple

from everlog.documents.filters.automaton import Automaton, Unsupported
from everlog.errors import InvalidDocument

MAX_PATTERN = 500
STEPS = 1_000_000  # of Python's engine, about 10 ms
MAX_WORK = 1_000_000  # states times characters of ours, at worst half a second
_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT)


class Pattern(NamedTuple):
    """A pattern for both engines, and the longest text for each."""

    compiled: re.Pattern[str]
    longest: int
    automaton: Automaton

    def search(self, text: str) -> bool | None:
        """Whether it is found in the text; None if that would take too long."""
        if len(text) <= self.longest:
            return self.compiled.search(text) is not None
        if len(text) * self.automaton.size > MAX_WORK:
            return None
        return self.automaton.search(text)

    def split(self, text: str) -> list[str] | None:
        """The pieces of the text between its occurrences; None if that might take too long."""
        return [piece or "" for piece in self.compiled.split(text)] if len(text) <= self.longest else None


def check_pattern(text: str) -> Pattern:
    """The pattern, or InvalidDocument if it cannot be used."""
    try:
        return _compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidDocument("invalid-filter", f"{text[:50]!r} is not a regular expression: {error}") from error
    except Unsupported as error:
        raise InvalidDocument(
            "invalid-filter",
            f"{text[:50]!r}: references, look-around, flags inside and large repetitions are not supported ({error})",
        ) from error


@functools.lru_cache(maxsize=500)
def _compile(text: str) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise InvalidDocument("invalid-filter", f"a regular expression has at most {MAX_PATTERN} characters")
    tree = parser.parse(text)
    automaton = Automaton(tree)
    power = _power(tree)
    if power is None:
        return Pattern(re.compile(text), 0, automaton)
    anchored = len(tree) > 0 and tree[0] == (constants.AT, constants.AT_BEGINNING)
    power += not anchored  # a search begins at every character
    return Pattern(re.compile(text), int(STEPS ** (1 / max(1, power))), automaton)


def _power(tree: Any, *, inside: bool = False) -> int | None:
    """With which power of the text's length the time may grow: one for every repetition in a row; None: worse."""
    power = 0
    for operator, argument in tree:
        found: int | None = 0
        if operator in _REPEATS:
            least, most, inner = argument
            found = None if inside else _power(inner, inside=True)
            found = None if found is None else found + (least != most)
        elif operator is constants.SUBPATTERN:
            found = _power(argument[-1], inside=inside)
        elif operator is constants.BRANCH:
            branches = [_power(branch, inside=inside) for branch in argument[1]]
            known = [branch for branch in branches if branch is not None]
            found = None if inside or len(known) < len(branches) else max(known, default=0)
        if found is None:
            return None
        power += found
    return power
