"""Regular expressions from outside: none may keep the server busy.

RE2 takes time in proportion to the text times the size of the compiled pattern, and never goes back. It has no
back-references and no look-around, and its classes `\\d`, `\\w`, `\\s` and `\\b` know ASCII alone.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from everlog.errors import InvalidDocument, MissingExtra

try:
    import re2
except ImportError as error:
    raise MissingExtra("server") from error

MAX_PATTERN = 500
MAX_MEMORY_BYTES = 1024 * 1024  # of one compiled pattern
MAX_PATTERNS = 128  # as many as re2 itself keeps
MAX_WORK = 50_000_000  # characters times instructions of the compiled pattern: at worst half a second
MAX_PIECES = 50_000  # of a split: re2 takes some 10 µs for each

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

    def search(self, text: str) -> bool | None:
        """Whether it is found in the text; None if that might take too long, or the text is no valid Unicode."""
        if self._work(text) > MAX_WORK or not _is_valid(text):
            return None
        return self.compiled.search(text) is not None

    def split(self, text: str) -> list[str] | None:
        """The pieces of the text between its occurrences; None as above.

        Each occurrence is a search of its own. One that may be of any length may look at all of the rest each time.
        """
        if self._work(text) * (len(text) if self.repeats else 1) > MAX_WORK or not _is_valid(text):
            return None
        pieces: list[str] = []
        at = 0
        for found in self.compiled.finditer(text):
            pieces += (text[at : found.start()], *(group or "" for group in found.groups()))
            at = found.end()
            if len(pieces) >= MAX_PIECES:
                return None
        return [*pieces, text[at:]]

    def _work(self, text: str) -> int:
        size: int = self.compiled.programsize
        return size * len(text)


def _is_valid(text: str) -> bool:
    """Whether the text has no half of a surrogate pair: it has no UTF-8 form, which RE2 needs."""
    return text.isascii() or _SURROGATE.search(text) is None


def check_pattern(text: str) -> Pattern:
    """The pattern, or InvalidDocument if it cannot be used."""
    try:
        return _compile(text)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        remedy = next((f"; {remedy}" for start, remedy in _REMEDIES if reason.startswith(start)), "")
        message = f"{text[:50]!r} is not a regular expression of RE2: {reason}{remedy}"
        raise InvalidDocument("invalid-filter", message) from error


@functools.lru_cache(maxsize=MAX_PATTERNS)
def _compile(text: str) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise InvalidDocument("invalid-filter", f"a regular expression has at most {MAX_PATTERN} characters")
    if not _is_valid(text):
        raise InvalidDocument("invalid-filter", f"{text[:50]!r} has half of a surrogate pair in it: remove it")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY_BYTES
    return Pattern(re2.compile(text, options=options), _REPEATS.search(_ESCAPED.sub("", text)) is not None)
