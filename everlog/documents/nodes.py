"""Nodes: servers that share documents. Their rows, by which they know of each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

import msgspec


class NodeState(StrEnum):
    """The life of a node. A passive one may send, and takes no work."""

    ACTIVATING = "activating"
    ACTIVE = "active"
    DEACTIVATING = "deactivating"
    PASSIVE = "passive"


SHARING = (NodeState.ACTIVATING, NodeState.ACTIVE)


class Node(msgspec.Struct, frozen=True):
    """A row of the table of nodes. `beat` grows while the node lives; `view` is how it routes, once nothing that it
    still works on belongs to another one that way."""

    id: str
    address: str
    state: NodeState
    beat: int = 0
    view: str = ""
    seen_ms: int = 0


class NodeTable(ABC):
    """Where the rows of nodes are kept. Every row has one writer, but any node may remove that of a dead one."""

    @abstractmethod
    async def nodes(self) -> list[Node]:
        """All rows."""

    @abstractmethod
    async def save(self, node: Node) -> None:
        """Write the whole row."""

    @abstractmethod
    async def remove(self, node_id: str) -> None:
        """The node is gone. If it is not, it comes back as another one."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the file."""
