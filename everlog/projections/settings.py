"""Checks of what a declaration is made of: sources, strategies and settings. What cannot work is InvalidProjection."""

from __future__ import annotations

import math
from collections.abc import Sequence

from everlog.core.arguments import check_flag, check_text, check_whole
from everlog.core.values import MAX_SEQ_NR, check_unicode, shown
from everlog.errors import InvalidInput, InvalidProjection

MAX_VERSION_BYTES = 1000


def check_count(what: str, value: int, *, least: int = 1, most: int = MAX_SEQ_NR) -> int:
    """A whole number within bounds."""
    try:
        return check_whole(what, value, min_value=least, max_value=most)
    except InvalidInput as error:
        raise InvalidProjection(str(error)) from error


def check_choice(what: str, value: bool) -> bool:
    """True or False."""
    try:
        return check_flag(what, value)
    except InvalidInput as error:
        raise InvalidProjection(str(error)) from error


def check_duration(what: str, value: float, *, zero: bool = False) -> float:
    """A number of seconds, more than 0; or at least 0."""
    number = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        raise InvalidProjection(f"{what} is {'at least' if zero else 'more than'} 0 seconds, not {shown(value)}")
    return value


def check_version(version: str) -> str:
    """The version of a projection's code: text, which may be empty."""
    if not isinstance(version, str):
        raise InvalidProjection(f"a version is text, such as version='2', not {shown(version)}")
    try:
        size = len(check_unicode("version", version).encode())
    except InvalidInput as error:
        raise InvalidProjection(str(error)) from error
    if size > MAX_VERSION_BYTES:
        raise InvalidProjection(f"this version has {size:,} bytes, at most {MAX_VERSION_BYTES:,} are allowed")
    return version


def check_tables(tables: Sequence[str]) -> tuple[str, ...]:
    """The names of a view's tables: several, so text alone is a mistake."""
    if isinstance(tables, str) or not isinstance(tables, Sequence):
        raise InvalidProjection(f"tables are a list of names, such as tables=['owed'], not {shown(tables)}")
    try:
        return tuple(check_text("name of a table", one) for one in tables)
    except InvalidInput as error:
        raise InvalidProjection(str(error)) from error
