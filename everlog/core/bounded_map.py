"""A bounded memory of things by name: callers may make up any number of names."""

from __future__ import annotations

from typing import TypeVar

MAX_KEPT = 1000

T = TypeVar("T")


def keep(known: dict[str, T], name: str, value: T, *, limit: int = MAX_KEPT) -> None:
    """Remember a value under its name; beyond the limit, the oldest is forgotten.

    >>> known = {"a": 1, "b": 2}
    >>> keep(known, "c", 3, limit=2); known
    {'b': 2, 'c': 3}
    """
    if len(known) >= limit and name not in known:
        del known[next(iter(known))]
    known[name] = value
