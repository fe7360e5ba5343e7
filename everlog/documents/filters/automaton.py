"""Regular expressions in linear time: all alternatives at once, character by character.

Python's engine is quicker where it does not have to go back; this one never takes long. It takes what `re` parses,
except references, look-around, and groups that do not give back.
"""

from __future__ import annotations

import re
import re._constants as constants  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MAX_STATES = 2000

Test = Callable[[str], bool]


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[Any, Test] = {
    constants.CATEGORY_DIGIT: str.isdecimal,
    constants.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    constants.CATEGORY_SPACE: str.isspace,
    constants.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    constants.CATEGORY_WORD: _is_word,
    constants.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}
_KNOWN_FLAGS = re.UNICODE | re.IGNORECASE | re.DOTALL | re.MULTILINE


class Unsupported(Exception):
    """The pattern uses what this engine does not have, or is too large for it."""


class _State(NamedTuple):
    """Consumes a character, or forks, or holds only at some places, or is the end (none of them)."""

    test: Test | None = None
    place: Any = None
    to: tuple[int, ...] = ()


class Automaton:
    """A compiled pattern."""

    def __init__(self, tree: Any) -> None:
        self._flags = tree.state.flags
        if self._flags & ~_KNOWN_FLAGS:
            raise Unsupported("flags")
        self._states: list[_State] = [_State()]
        self._start = self._sequence(tree, 0)

    @property
    def size(self) -> int:
        return len(self._states)

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise Unsupported("size")
        self._states.append(state)
        return len(self._states) - 1

    def _sequence(self, tree: Iterable[Any], to: int) -> int:
        """States for a sequence that leads to a state; built from its end."""
        for operator, argument in reversed(list(tree)):
            to = self._one(operator, argument, to)
        return to

    def _one(self, operator: Any, argument: Any, to: int) -> int:
        if operator is constants.SUBPATTERN:
            _, added, removed, inner = argument
            if added or removed:
                raise Unsupported("flags inside")
            return self._sequence(inner, to)
        if operator is constants.BRANCH:
            return self._add(_State(to=tuple(self._sequence(branch, to) for branch in argument[1])))
        if operator in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            least, most, inner = argument
            return self._repeat(least, most, inner, to)
        if operator is constants.AT:
            return self._add(_State(place=argument, to=(to,)))
        return self._add(_State(test=self._test(operator, argument), to=(to,)))

    def _repeat(self, least: int, most: Any, inner: Any, to: int) -> int:
        if most is constants.MAXREPEAT:
            loop = self._add(_State())
            self._states[loop] = _State(to=(self._sequence(inner, loop), to))
            to = loop
        else:
            end = to
            for _ in range(most - least):
                to = self._add(_State(to=(self._sequence(inner, to), end)))
        for _ in range(least):
            to = self._sequence(inner, to)
        return to

    def _test(self, operator: Any, argument: Any) -> Test:
        if operator is constants.ANY:
            every = bool(self._flags & re.DOTALL)
            return lambda character: every or character != "\n"
        negated, wanted = _wanted(operator, argument)
        if self._flags & re.IGNORECASE:
            return lambda character: _any_case(wanted, character) is not negated
        return lambda character: wanted(character) is not negated

    def search(self, text: str) -> bool:
        """Whether the pattern is found anywhere."""
        current: set[int] = set()
        for at in range(len(text) + 1):
            current.add(self._start)
            reached = self._close(current, text, at)
            if 0 in reached:
                return True
            if at == len(text):
                break
            character, current = text[at], set()
            for number in reached:
                test = self._states[number].test
                if test is not None and test(character):
                    current.update(self._states[number].to)
        return False

    def _close(self, numbers: set[int], text: str, at: int) -> set[int]:
        """All states that are reached without a character."""
        found, waiting = set(numbers), list(numbers)
        while waiting:
            state = self._states[waiting.pop()]
            if state.test is None and (state.place is None or self._holds(state.place, text, at)):
                new = [number for number in state.to if number not in found]
                found.update(new)
                waiting += new
        return found

    def _holds(self, place: Any, text: str, at: int) -> bool:
        lines = bool(self._flags & re.MULTILINE)
        if place is constants.AT_BEGINNING:
            return at == 0 or (lines and text[at - 1] == "\n")
        if place is constants.AT_BEGINNING_STRING:
            return at == 0
        if place is constants.AT_END:
            return at == len(text) or (text[at] == "\n" and (lines or at == len(text) - 1))
        if place is constants.AT_END_STRING:
            return at == len(text)
        before = at > 0 and _is_word(text[at - 1])
        after = at < len(text) and _is_word(text[at])
        return (before is not after) is (place is constants.AT_BOUNDARY)


def _any_case(wanted: Test, character: str) -> bool:
    return wanted(character) or wanted(character.lower()) or wanted(character.upper())


def _wanted(operator: Any, argument: Any) -> tuple[bool, Test]:
    """Whether the characters are those that are not wanted, and which are."""
    if operator is constants.NOT_LITERAL:
        return True, _single(constants.LITERAL, argument)
    if operator is not constants.IN:
        return False, _single(operator, argument)
    negated = argument[0][0] is constants.NEGATE
    tests = [_single(kind, inner) for kind, inner in (argument[1:] if negated else argument)]
    return negated, lambda character: any(test(character) for test in tests)


def _single(operator: Any, argument: Any) -> Test:
    if operator is constants.LITERAL:
        return chr(argument).__eq__
    if operator is constants.CATEGORY:
        return _CATEGORIES[argument]
    if operator is constants.RANGE:
        low, high = map(chr, argument)
        return lambda character: low <= character <= high
    raise Unsupported(str(operator))
