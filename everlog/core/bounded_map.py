"""A bounded memory of things by name: callers may make up any number of names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

MAX_KEPT = 1000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V]):
    """A mapping that forgets: beyond `max_items`, the item that was put longest ago.

    >>> known = BoundedMap[str, int](2)
    >>> for number, name in enumerate(["a", "b", "a", "c"]):
    ...     _ = known.put(name, number)
    >>> dict(known)
    {'a': 2, 'c': 3}
    """

    def __init__(self, max_items: int = MAX_KEPT) -> None:
        super().__init__()
        self.max_items = max_items

    def put(self, key: K, value: V) -> V:
        """Remember a value under its key; returns the value."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self.max_items:
            self.popitem(last=False)
        return value
