"""A consistent hash: which node a key belongs to. A node that comes or goes moves only the keys of its own share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from everlog.errors import MissingExtra

try:
    import mmh3
except ImportError as error:
    raise MissingExtra("server") from error

VIRTUAL_NODES = 128


def _hash(text: str) -> int:
    found: int = mmh3.hash(text, signed=False)
    return found


class HashRing:
    """Nodes on a circle, each at 128 places; a key belongs to the first node behind it.

    >>> Ring(["a"]).owner("any"), Ring([]).owner("any")
    ('a', None)
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        places = sorted((_hash(f"{node}#{number}"), node) for node in set(nodes) for number in range(VIRTUAL_NODES))
        self._places = [place for place, _ in places]
        self._nodes = [node for _, node in places]

    def owner(self, key: str) -> str | None:
        """The node of a key; None if there is no node."""
        if not self._nodes:
            return None
        return self._nodes[bisect_right(self._places, _hash(key)) % len(self._nodes)]
