"""Regular expressions from outside: none may keep the server busy.

Python's engine tries alternatives one after the other, so that some patterns take time that grows exponentially, or
with a high power of the text's length. The former are refused; the latter are matched only against texts that are
short enough.
"""

from __future__ import annotations

import functools
import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from typing import Any, NamedTuple

from everlog.errors import InvalidDocument

MAX_PATTERN = 500
STEPS = 3_000_000  # about 30 ms
_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
_UNSUITABLE = (constants.GROUPREF, constants.GROUPREF_EXISTS, constants.ASSERT, constants.ASSERT_NOT)


class Pattern(NamedTuple):
    """A compiled pattern, and the longest text that it may meet."""

    compiled: re.Pattern[str]
    longest: int


def check_pattern(text: str) -> Pattern:
    """The pattern, or InvalidDocument if it cannot be read or might take too long."""
    try:
        return _compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidDocument("invalid-filter", f"{text[:50]!r} is not a regular expression: {error}") from error


@functools.lru_cache(maxsize=500)
def _compile(text: str) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise InvalidDocument("invalid-filter", f"a regular expression has at most {MAX_PATTERN} characters")
    tree = parser.parse(text)
    power = _power(tree, text)
    anchored = len(tree) > 0 and tree[0] == (constants.AT, constants.AT_BEGINNING)
    power += not anchored  # a search begins at every character
    return Pattern(re.compile(text), int(STEPS ** (1 / max(1, power))))


def _power(tree: Any, text: str, *, inside: bool = False) -> int:
    """With which power of the text's length the time may grow: one for every repetition in a row."""
    power = 0
    for operator, argument in tree:
        if operator in _UNSUITABLE:
            raise InvalidDocument("invalid-filter", f"{text!r}: references and look-around are not supported")
        if operator in _REPEATS:
            least, most, inner = argument
            varies = least != most
            if inside and (varies or least > 1):
                raise InvalidDocument("invalid-filter", f"{text!r}: a repetition inside a repetition may take too long")
            power += (1 if varies else 0) + _power(inner, text, inside=True)
        elif operator is constants.SUBPATTERN:
            power += _power(argument[-1], text, inside=inside)
        elif operator is constants.BRANCH:
            if inside:
                raise InvalidDocument("invalid-filter", f"{text!r}: a choice inside a repetition may take too long")
            power += max(_power(branch, text, inside=inside) for branch in argument[1])
        elif operator is constants.ATOMIC_GROUP:
            power += _power(argument, text, inside=inside)
    return power
