"""Bodies that were seen lately, a bounded number of them and of their bytes; the oldest go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

MAX_BYTES = 4 * 1024 * 1024
MAX_BODIES = 10_000


class BodyCache:
    """Bodies by path or id. A body may be None: there is none.

    >>> cache = BodyCache()
    >>> cache.put("a", {"n": 1}, 7)
    >>> cache.get("a"), cache.get("b")
    ((True, {'n': 1}), (False, None))
    """

    def __init__(self) -> None:
        self._bodies: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._bodies

    def get(self, name: str) -> tuple[bool, Any]:
        """Whether it is known, and the body."""
        found = self._bodies.get(name)
        return (False, None) if found is None else (True, found[0])

    def put(self, name: str, body: Any, size: int) -> None:
        """Remember the newest body; `size` in bytes."""
        _, old = self._bodies.pop(name, (None, 0))
        self._bodies[name] = (body, size)
        self._bytes += size - old
        while self._bytes > MAX_BYTES or len(self._bodies) > MAX_BODIES:
            _, (_, gone) = self._bodies.popitem(last=False)
            self._bytes -= gone

    def clear(self) -> None:
        """Forget all."""
        self._bodies.clear()
        self._bytes = 0
