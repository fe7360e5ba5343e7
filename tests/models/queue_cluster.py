"""Queues on a model of Cassandra: the real store, shards, calls and sockets; only the tables are a model."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from everlog.config import CassandraConfig
from everlog.config.queue_options import QueueSettings
from everlog.queues.cassandra.owner import AdminStore
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.cassandra.register import QueueRegister, QueueRow, StoredQueue, decode_row, encode_stored
from everlog.queues.memory import MemoryTable
from everlog.queues.operations import Operation
from everlog.queues.rows import DeadLetter, Flag
from everlog.queues.shards import ShardPart
from tests.models.queue_log import ModelBackend, World


class Tables:
    """What all processes share. `lossy`: how often the answer of a conditional write gets lost."""

    def __init__(self, *, lossy: float = 0.0) -> None:
        self.chance = random.Random(7)
        self.lossy = lossy
        self.register = ModelRegister(self)
        self.worlds: dict[tuple[str, int], World] = {}
        self.admins: dict[tuple[str, int], ModelAdminStore] = {}

    def world(self, name: str, part: ShardPart) -> World:
        return self.worlds.setdefault((name, part.index), World(self.chance, lossy=self.lossy))


class ModelRegister(QueueRegister):
    """The table of all queues."""

    def __init__(self, tables: Tables) -> None:
        self.texts: dict[str, str] = {}
        self._tables = tables

    async def read(self, name: str, *, serial: bool = True) -> QueueRow | None:
        text = self.texts.get(name)
        return None if text is None else decode_row(text)

    async def insert(self, queue: StoredQueue) -> bool | None:
        return self._write(queue, None)

    async def replace(self, before: QueueRow, queue: StoredQueue) -> bool | None:
        return self._write(queue, before.text)

    def _write(self, queue: StoredQueue, before: str | None) -> bool | None:
        lost = self._tables.chance.random() < self._tables.lossy
        if lost and self._tables.chance.random() < 0.5:
            return None
        fine = self.texts.get(queue.name) == before
        if fine:
            self.texts[queue.name] = encode_stored(queue)
        return None if lost else fine

    async def open_names(self) -> list[str]:
        return sorted(name for name, text in self.texts.items() if decode_row(text).queue.state == "open")


class ModelAdminStore(AdminStore):
    """Dead letters and flags."""

    def __init__(self) -> None:
        self.letters: dict[int, DeadLetter] = {}
        self.flags: dict[str, Flag] = {}
        self.audited: list[Operation] = []

    async def load(self, table: MemoryTable) -> None:
        for letter in self.letters.values():
            table.bury(letter)
        for flag in self.flags.values():
            table.put_flag(flag)

    async def save(self, table: MemoryTable) -> None:
        self.letters.update(table.buried)
        for reason, flag in table.flagged.items():
            self.flags.pop(reason, None)
            if flag is not None:
                self.flags[reason] = flag

    async def drop(self, table: MemoryTable) -> None:
        for entry in table.unburied:
            self.letters.pop(entry, None)

    async def audit(self, operation: Operation, now: int) -> None:
        self.audited.append(operation)


class ModelQueueStore(CassandraQueueStore):
    """One process."""

    def __init__(self, tables: Tables, name: str, **options: Any) -> None:
        super().__init__(CassandraConfig(), name=name, **options)
        self.tables = tables

    async def backend(self, name: str, part: ShardPart) -> ModelBackend:
        self._loop = asyncio.get_running_loop()
        await self.reach_others()
        return ModelBackend(self.tables.world(name, part))

    async def admin(self, name: str, part: ShardPart, settings: QueueSettings) -> ModelAdminStore:
        return self.tables.admins.setdefault((name, part.index), ModelAdminStore())

    async def register(self) -> ModelRegister:
        self._loop = asyncio.get_running_loop()
        return self.tables.register
