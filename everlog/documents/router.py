"""Which node a write belongs to, and when that node may work on it. Pure.

Routing only saves contention. Two nodes that disagree for a while do no harm: a write is accepted on the revision that
it was decided on, whichever node decides.

A node begins as activating: others send it what is its own, and it keeps that until all others route as it does and
have ended their tasks of keys that have moved. A node that leaves is deactivating: it sends on what comes, and the next
owner keeps that until the leaving one has ended its tasks and is passive.
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import mmh3

from everlog.documents.nodes import SHARING, Node, NodeState

VIRTUAL_NODES = 128


def _hash(text: str) -> int:
    found: int = mmh3.hash(text, signed=False)
    return found


class HashRing:
    """Nodes on a circle, each at 128 places; a key belongs to the first node behind it.

    >>> HashRing(["a"]).owner("any"), HashRing([]).owner("any")
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


@functools.lru_cache(maxsize=32)
def _ring(nodes: frozenset[str]) -> HashRing:
    return HashRing(nodes)


class Router:
    """How one node routes: the members that it knows of, itself among them."""

    def __init__(self, me: Node, others: Collection[Node] = ()) -> None:
        self.me = me
        self.others: Mapping[str, Node] = {node.id: node for node in others if node.state is not NodeState.PASSIVE}
        members = [me, *self.others.values()]
        self._current = _ring(frozenset(node.id for node in members if node.state in SHARING))
        self._previous = _ring(frozenset(node.id for node in members if node.state is not NodeState.PASSIVE))
        marks = sorted(f"{node.id} {node.state in SHARING}" for node in members if node.state is not NodeState.PASSIVE)
        self.view = hashlib.blake2b("\n".join(marks).encode(), digest_size=16).hexdigest()

    def place(self, key: str) -> Node | Literal["here", "wait"]:
        """Where a task of this key runs now. `wait`: here, but another node may still work on it."""
        owner = self._current.owner(key)
        if owner is None:
            return "here"  # all nodes have stopped taking work; the store decides
        if owner != self.me.id:
            return self.others[owner]
        if self.me.state is NodeState.ACTIVATING or self._previous.owner(key) != owner:
            return "wait"
        return "here"

    def owns(self, key: str) -> bool:
        """Whether this node alone works on a key."""
        return self.place(key) == "here"

    def moved(self, keys: Collection[str]) -> bool:
        """Whether one of these keys, which this node works on, belongs to another node."""
        return any(self._current.owner(key) not in (self.me.id, None) for key in keys)

    @property
    def unconfirmed(self) -> list[Node]:
        """The nodes that route otherwise, or still work on what has moved."""
        return [node for node in self.others.values() if node.view != self.view]
