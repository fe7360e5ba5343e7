"""The table of all queues: what each is declared to be, whether it is being deleted, and which numbers it has used.

Conditional writes only. The row of a deleted queue stays: entries of a later queue of that name begin above its own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import msgspec

from everlog.cassandra.session import Session
from everlog.queues.cassandra.backend import QUEUE_TABLES
from everlog.queues.declaration import Declaration

QueueState = Literal["open", "deleting", "deleted"]


class StoredQueue(Declaration, frozen=True):
    """A declaration as its row has it.

    `last_entry`: the last one of deleted queues with this name. `deletion`: which deletion of them was the last one, or
    goes on; `jobs`: how many jobs went then. `decided`: that one takes what runs, or nothing did; until then it may be
    refused. `life`: which of the queues with this name it is.
    """

    state: QueueState = "open"
    last_entry: int = 0
    deletion: str = ""
    jobs: int = 0
    decided: bool = False
    life: int = 1

    @property
    def declaration(self) -> Declaration:
        return Declaration(self.name, self.options, self.schemas, self.description)


class QueueRow(NamedTuple):
    """What a row says, as text and as what it means."""

    text: str
    queue: StoredQueue


def stored(declaration: Declaration, before: StoredQueue | None = None) -> StoredQueue:
    """The row of a queue that is there; `before`: its row, or that of a deleted one."""
    fields = (declaration.name, declaration.options, declaration.schemas, declaration.description)
    if before is None:
        return StoredQueue(*fields)
    life = before.life + (before.state == "deleted")
    return StoredQueue(*fields, "open", before.last_entry, before.deletion, before.jobs, life=life)


def encode_stored(queue: StoredQueue) -> str:
    return msgspec.json.encode(queue).decode()


def decode_row(text: str) -> QueueRow:
    return QueueRow(text, msgspec.json.decode(text, type=StoredQueue))


class QueueRegister(Protocol):
    """The rows. A write answers None if its outcome is unknown: it is read again."""

    async def read(self, name: str, *, serial: bool = True) -> QueueRow | None: ...

    async def insert(self, queue: StoredQueue) -> bool | None: ...

    async def replace(self, before: QueueRow, queue: StoredQueue) -> bool | None:
        """Write the row if it is still what it was."""

    async def open_names(self) -> list[str]:
        """Of all queues that are not deleted."""


class CassandraRegister(QueueRegister):
    """The table in a keyspace."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cql = QUEUE_TABLES.statements(session.config.keyspace)

    async def read(self, name: str, *, serial: bool = True) -> QueueRow | None:
        found = await self._session.fetch(self._cql["queue"], name, serial=serial)
        return decode_row(found[0][0]) if found else None

    async def insert(self, queue: StoredQueue) -> bool | None:
        return await self._session.write_if(self._cql["insert_queue"], queue.name, encode_stored(queue))

    async def replace(self, before: QueueRow, queue: StoredQueue) -> bool | None:
        return await self._session.write_if(self._cql["update_queue"], encode_stored(queue), queue.name, before.text)

    async def open_names(self) -> list[str]:
        rows = await self._session.fetch(self._cql["queues"])
        return sorted(name for name, text in rows if decode_row(text).queue.state == "open")
