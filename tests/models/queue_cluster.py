"""Queues on a model of Cassandra: the real store, shards, calls and sockets; only the tables are a model."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from everlog.config import CassandraConfig
from everlog.config.queue_options import QueueSettings
from everlog.queues.cassandra.owner import AdminStore
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.declaration import Declaration
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
        self.declarations: dict[str, Declaration] = {}
        self.worlds: dict[tuple[str, int], World] = {}
        self.admins: dict[tuple[str, int], ModelAdminStore] = {}

    def world(self, name: str, part: ShardPart) -> World:
        return self.worlds.setdefault((name, part.index), World(self.chance, lossy=self.lossy))


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

    async def declare(self, wanted: Declaration) -> Declaration:
        before = self.tables.declarations.setdefault(wanted.name, wanted)
        found = before.evolve(wanted, empty=await self._is_empty(wanted.name))
        self.tables.declarations[wanted.name] = found
        return found

    async def declared(self, name: str) -> Declaration | None:
        return self.tables.declarations.get(name)

    async def names(self) -> list[str]:
        return sorted(self.tables.declarations)
