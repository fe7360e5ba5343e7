"""The functions of filters, in both spellings."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from everlog.documents.filters.patterns import Pattern, check_pattern
from everlog.documents.filters.values import FilterFailure, is_number, text_form, whole_of
from everlog.errors import InvalidDocument

MAX_ARGUMENTS = 100
_DATE_PARTS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%f", "Z": "%z"}
_DATE_TOKEN = re.compile(r"'(?:[^']|'')*'|yyyy|MM|dd|HH|mm|ss|SSS|Z|[A-Za-z]|[^A-Za-z']")


class Function(NamedTuple):
    """How a function is called; `now_ms` comes first if it asks for the time."""

    call: Callable[..., Any]
    arity: tuple[int, int]
    needs_time: bool = False


def search(text: str, pattern: str) -> bool:
    """Whether a pattern is found anywhere in a text."""
    found = _pattern(pattern).search(text)
    if found is None:
        raise FilterFailure
    return found


def _pattern(text: str) -> Pattern:
    """A pattern that may come from an element: a bad one is no value."""
    try:
        return check_pattern(text)
    except InvalidDocument:
        raise FilterFailure from None


def _case(index: Any, *values: Any) -> Any:
    at = whole_of(index)
    if not 1 <= at <= len(values):
        raise FilterFailure
    return values[at - 1]


def _empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _length(value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise FilterFailure
    return len(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FilterFailure
    return value


def _upper(value: Any) -> str:
    return _text(value).upper()


def _lower(value: Any) -> str:
    return _text(value).lower()


def _split(value: Any, pattern: Any) -> list[str]:
    found = _pattern(_text(pattern)).split(_text(value))
    if found is None:
        raise FilterFailure
    return found


def _index_of(value: Any, part: Any) -> int:
    return _text(value).find(text_form(part))


def _substr(value: Any, start: Any, end: Any = None) -> str:
    """From a place up to another one; both must lie in the text."""
    text, first = _text(value), whole_of(start)
    last = len(text) if end is None else whole_of(end)
    if not 0 <= first <= last <= len(text):
        raise FilterFailure
    return text[first:last]


def _compare_ignoring_case(left: Any, right: Any) -> int:
    one, other = _text(left).casefold(), _text(right).casefold()
    return (one > other) - (one < other)


def _apply(value: Any, index: Any) -> Any:
    if isinstance(value, dict):
        return value.get(text_form(index))
    if isinstance(value, list | str):
        at = whole_of(index)
        if 0 <= at < len(value):
            return value[at]
    raise FilterFailure


def _zone(name: Any) -> tzinfo:
    try:
        return UTC if name is None else ZoneInfo(_text(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FilterFailure from None


def _date_format(pattern: Any) -> str:
    """`yyyy-MM-dd` and its like, for Python."""
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


def _format_unix_time(value: Any, pattern: Any = None, zone: Any = None) -> str:
    if not is_number(value):
        raise FilterFailure
    try:
        moment = datetime.fromtimestamp(whole_of(value) / 1000, _zone(zone))
        if pattern is None:
            return moment.isoformat(timespec="milliseconds")
        return moment.strftime(_date_format(pattern).replace("%f", f"{moment.microsecond // 1000:03}"))
    except (OverflowError, ValueError, OSError):
        raise FilterFailure from None


def _parse_unix_time(value: Any, pattern: Any = None, zone: Any = None) -> int:
    try:
        text = _text(value)
        moment = datetime.fromisoformat(text) if pattern is None else _read_time(text, _date_format(pattern))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=_zone(zone))
        return round(moment.timestamp() * 1000)
    except (OverflowError, ValueError, OSError):
        raise FilterFailure from None


def _read_time(text: str, pattern: str) -> datetime:
    return datetime.strptime(text, pattern)  # noqa: DTZ007  # the caller adds the zone if the text has none


def _unix_time(now_ms: int) -> int:
    return now_ms


FUNCTIONS: dict[str, Function] = {
    "case": Function(_case, (2, MAX_ARGUMENTS)),
    "empty": Function(_empty, (1, 1)),
    "exists": Function(lambda value: value is not None, (1, 1)),
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
