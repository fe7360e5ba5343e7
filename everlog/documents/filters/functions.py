"""The functions of filters, in both spellings."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from everlog.documents.filters.budget import LONG, Budget
from everlog.documents.filters.patterns import Pattern, pay_pattern
from everlog.documents.filters.values import FilterFailure, finds, is_number, text_form, whole_of
from everlog.errors import FilterTooExpensive, InvalidDocument

MAX_ARGUMENTS = 100
TIME_STEPS = 500  # to read or write a time
ZONE_STEPS = 5000  # a zone may have to be read from a file
_DATE_PARTS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%f", "Z": "%z"}
_DATE_TOKEN = re.compile(r"'(?:[^']|'')*'|yyyy|MM|dd|HH|mm|ss|SSS|Z|[A-Za-z]|[^A-Za-z']")


class Function(NamedTuple):
    """How a function is called: with the budget, then its arguments. `needs_time`: the answer depends on when."""

    call: Callable[..., Any]
    arity: tuple[int, int]
    needs_time: bool = False


def search(text: str, pattern: str, budget: Budget) -> bool:
    """Whether a pattern is found anywhere in a text."""
    found = _pattern(pattern, budget).search(text, budget)
    if found is None:
        raise FilterFailure
    return found


def _pattern(text: str, budget: Budget) -> Pattern:
    """A pattern that may come from an element: a bad one is no value."""
    try:
        return pay_pattern(text, budget)
    except FilterTooExpensive:
        raise
    except InvalidDocument:
        raise FilterFailure from None


def _case(budget: Budget, index: Any, *values: Any) -> Any:
    at = whole_of(index)
    if not 1 <= at <= len(values):
        raise FilterFailure
    return values[at - 1]


def _empty(budget: Budget, value: Any) -> bool:
    return value is None or value in ("", [], {})


def _length(budget: Budget, value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise FilterFailure
    return len(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FilterFailure
    return value


def _cased(value: Any, budget: Budget) -> str:
    """A text whose case is about to change; that takes longer for other alphabets than ASCII."""
    text = _text(value)
    if len(text) > LONG:
        budget.build(len(text))
        budget.take(0 if text.isascii() else len(text) >> 1)
    return text


def _upper(budget: Budget, value: Any) -> str:
    return _cased(value, budget).upper()


def _lower(budget: Budget, value: Any) -> str:
    return _cased(value, budget).lower()


def _split(budget: Budget, value: Any, pattern: Any) -> list[str]:
    found = _pattern(_text(pattern), budget).split(_text(value), budget)
    if found is None:
        raise FilterFailure
    return found


def _index_of(budget: Budget, value: Any, part: Any) -> int:
    return finds(_text(value), text_form(part, budget), budget)


def _substr(budget: Budget, value: Any, start: Any, end: Any = None) -> str:
    """From a place up to another one; both must lie in the text."""
    text, first = _text(value), whole_of(start)
    last = len(text) if end is None else whole_of(end)
    if not 0 <= first <= last <= len(text):
        raise FilterFailure
    budget.build(last - first)
    return text[first:last]


def _compare_ignoring_case(budget: Budget, left: Any, right: Any) -> int:
    one, other = _cased(left, budget).casefold(), _cased(right, budget).casefold()
    return (one > other) - (one < other)


def _apply(budget: Budget, value: Any, index: Any) -> Any:
    if isinstance(value, dict):
        return value.get(text_form(index, budget))
    if isinstance(value, list | str):
        at = whole_of(index)
        if 0 <= at < len(value):
            return value[at]
    raise FilterFailure


def _zone(name: Any, budget: Budget) -> tzinfo:
    try:
        if name is None:
            return UTC
        budget.take(ZONE_STEPS)
        return ZoneInfo(_text(name))
    except FilterTooExpensive:
        raise  # it is a ValueError, too
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FilterFailure from None


def _date_format(pattern: Any, budget: Budget) -> str:
    """`yyyy-MM-dd` and its like, for Python."""
    budget.build(len(_text(pattern)) * 16)  # of what it makes, too
    budget.take(TIME_STEPS + len(pattern) * 16)
    found = ""
    for token in _DATE_TOKEN.findall(_text(pattern)):
        if token.startswith("'"):
            found += token[1:-1].replace("''", "'").replace("%", "%%") or "'"
        elif token in _DATE_PARTS:
            found += _DATE_PARTS[token]
        elif token.isalpha():
            raise FilterFailure
        else:
            found += token.replace("%", "%%")
    return found


def _format_unix_time(budget: Budget, value: Any, pattern: Any = None, zone: Any = None) -> str:
    if not is_number(value):
        raise FilterFailure
    budget.take(TIME_STEPS)
    try:
        moment = datetime.fromtimestamp(whole_of(value) / 1000, _zone(zone, budget))
        if pattern is None:
            return moment.isoformat(timespec="milliseconds")
        return moment.strftime(_date_format(pattern, budget).replace("%f", f"{moment.microsecond // 1000:03}"))
    except FilterTooExpensive:
        raise
    except (OverflowError, ValueError, OSError):
        raise FilterFailure from None


def _parse_unix_time(budget: Budget, value: Any, pattern: Any = None, zone: Any = None) -> int:
    try:
        text = _text(value)
        budget.take(TIME_STEPS + (len(text) >> 3))
        moment = datetime.fromisoformat(text) if pattern is None else _read_time(text, _date_format(pattern, budget))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=_zone(zone, budget))
        return round(moment.timestamp() * 1000)
    except FilterTooExpensive:
        raise
    except (
        OverflowError,
        ValueError,
        OSError,
        re.error,
    ):  # Python makes a pattern of its own: a part twice fails there
        raise FilterFailure from None


def _read_time(text: str, pattern: str) -> datetime:
    return datetime.strptime(text, pattern)  # noqa: DTZ007  # the caller adds the zone if the text has none


def _exists(budget: Budget, value: Any) -> bool:
    return value is not None


def _unix_time(budget: Budget) -> int:
    return budget.now_ms


FUNCTIONS: dict[str, Function] = {
    "case": Function(_case, (2, MAX_ARGUMENTS)),
    "empty": Function(_empty, (1, 1)),
    "exists": Function(_exists, (1, 1)),
    "length": Function(_length, (1, 1)),
    "upper": Function(_upper, (1, 1)),
    "lower": Function(_lower, (1, 1)),
    "split": Function(_split, (2, 2)),
    "index_of": Function(_index_of, (2, 2)),
    "substr": Function(_substr, (2, 3)),
    "compare_ignoring_case": Function(_compare_ignoring_case, (2, 2)),
    "apply": Function(_apply, (2, 2)),
    "format_unix_time": Function(_format_unix_time, (1, 3)),
    "parse_unix_time": Function(_parse_unix_time, (1, 3)),
    "unix_time": Function(_unix_time, (0, 0), needs_time=True),
}
# The older names lead to the same functions.
SPELLINGS: dict[str, str] = {name: name for name in FUNCTIONS} | {
    "isEmpty": "empty",
    "isExists": "exists",
    "indexOf": "index_of",
    "compareIgnoreCase": "compare_ignoring_case",
}
