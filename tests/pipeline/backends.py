"""What the pipeline's tests need of a backend beside its interfaces: its tables as plain data, and how to break it."""

from __future__ import annotations

import json
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from tests.fixtures.keyspaces import head_place

Tables = dict[str, list[Any]]

# `garbage` may or may not be carried out yet; the order of tagged events is decided anew for other tables.
NOT_OF_THE_LOG = {"garbage", "ordering"}


class Backend(ABC):
    """A configuration with its log and its store."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def topic(self, name: str) -> str:
        """The log's name of a topic."""
        return self.config.journal.topic_prefix + name

    @abstractmethod
    async def tables(self) -> Tables:
        """Everything that a fold of the log determines; of views by tag, which events they hold."""

    @abstractmethod
    def twin(self) -> Backend:
        """The same log as it is now, with empty tables."""

    @abstractmethod
    async def pointer_times(self, topic: str, partition: int) -> tuple[int, int]:
        """When the row of pointer2 was made, and when it was last written."""

    @abstractmethod
    async def refuse(self, topic: str, journal_id: str) -> None:
        """From now on this journal cannot be written."""

    @abstractmethod
    async def allow(self, topic: str, journal_id: str) -> None:
        """Take `refuse` back."""


class EmbeddedBackend(Backend):
    """Two files of a folder."""

    ORDER: ClassVar = {
        "metajournal": "topic, segment, id",
        "journal": "id, topic, segment, seq_nr, timestamp",
        "quarantine": "topic, partition, offset",
        "rejected": "topic, partition, offset",
        "verdict": "topic, partition, offset, taken",
    }

    def connect(self) -> closing[sqlite3.Connection]:
        connection = sqlite3.connect(self.config.folder / "store.db", timeout=60, isolation_level=None)
        connection.row_factory = sqlite3.Row
        return closing(connection)

    async def tables(self) -> Tables:
        with self.connect() as connection:
            found: Tables = {
                name: [
                    {column: row[column] for column in row.keys() if column not in NOT_OF_THE_LOG}  # noqa: SIM118
                    for row in connection.execute(f"SELECT * FROM {name} ORDER BY {order}")
                ]
                for name, order in self.ORDER.items()
            }
            rows = connection.execute("SELECT topic, partition, offset FROM pointer2 ORDER BY 1, 2")
            found["pointer2"] = [tuple(row) for row in rows]
            for name, columns in (
                ("tag_views", "tag_name, topic, id, tag_seq_nr, seq_nr, record_id, offset, payload_txt, tags"),
                ("tag_write_progress", "topic, id, tag, seq_nr, tag_seq_nr, lowest"),
            ):
                rows = connection.execute(f"SELECT {columns} FROM {name} ORDER BY 1, 2, 3, 4, 5")
                found[name] = [tuple(row) for row in rows]
        return found

    def twin(self) -> Backend:
        folder = self.config.folder.with_name(f"twin-{secrets.token_hex(4)}")
        folder.mkdir()
        with (
            closing(sqlite3.connect(self.config.folder / "log.db")) as here,
            closing(sqlite3.connect(folder / "log.db")) as there,
        ):
            here.backup(there)
        return EmbeddedBackend(msgspec.structs.replace(self.config, data=str(folder)))

    async def pointer_times(self, topic: str, partition: int) -> tuple[int, int]:
        sql = "SELECT created, updated FROM pointer2 WHERE topic = ? AND partition = ?"
        with self.connect() as connection:
            created, updated = connection.execute(sql, (topic, partition)).fetchone()
        return created, updated

    async def refuse(self, topic: str, journal_id: str) -> None:
        sql = (
            f"CREATE TRIGGER refuse BEFORE INSERT ON journal WHEN new.id = '{journal_id}' "
            "BEGIN SELECT raise(ABORT, 'refused by the test'); END"
        )
        with self.connect() as connection:
            connection.execute(sql)

    async def allow(self, topic: str, journal_id: str) -> None:
        with self.connect() as connection:
            connection.execute("DROP TRIGGER refuse")


class ClusterBackend(Backend):
    """Topics of one prefix, and a keyspace."""

    # Settings differ by when they were pinned, snapshots do not come from the log, and gaps are mere hints.
    OTHERS: ClassVar = {"setting", "locks", "status", "snapshot_buffer", "gap", "pointer2", "expiry", "expiry_day"} | {
        "tag_plan",
        "tag_watermark",
        "tag_buckets",
        "tag_views",
        "tag_write_progress",
    }

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        from everlog.cassandra.session import connect

        assert self.config.cassandra is not None
        session = await connect(self.config.cassandra)
        try:
            yield session
        finally:
            await session.close()

    @property
    def keyspace(self) -> str:
        assert self.config.cassandra is not None
        return self.config.cassandra.keyspace

    async def tables(self) -> Tables:
        found: Tables = {}
        async with self.connect() as session:
            names = await session.fetch(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", self.keyspace
            )
            for name in sorted({name for (name,) in names} - self.OTHERS):
                rows = [json.loads(row[0]) for row in await session.fetch(f"SELECT JSON * FROM {self.keyspace}.{name}")]
                found[name] = sorted([_of_the_log(row) for row in rows], key=json.dumps)
            found["pointer2"] = sorted(
                await session.fetch(f"SELECT topic, partition, offset FROM {self.keyspace}.pointer2")
            )
            for name, columns in (
                ("tag_views", "tag_name, persistence_id, tag_pid_sequence_nr, sequence_nr, record_id, offset"),
                ("tag_write_progress", "persistence_id, tag, sequence_nr, tag_pid_sequence_nr, lowest"),
            ):
                found[name] = sorted(await session.fetch(f"SELECT {columns} FROM {self.keyspace}.{name}"))
        return found

    def twin(self) -> Backend:
        assert self.config.cassandra is not None
        cassandra = msgspec.structs.replace(self.config.cassandra, keyspace=f"{self.keyspace}{secrets.token_hex(2)}")
        return ClusterBackend(msgspec.structs.replace(self.config, cassandra=cassandra))

    async def pointer_times(self, topic: str, partition: int) -> tuple[int, int]:
        cql = f"SELECT created, updated FROM {self.keyspace}.pointer2 WHERE topic = ? AND partition = ?"
        async with self.connect() as session:
            ((created, updated),) = await session.fetch(cql, topic, partition)
        return created, updated

    async def refuse(self, topic: str, journal_id: str) -> None:
        """A head that no fold can have written: its write time is not that of its offset."""
        async with self.connect() as session:
            pinned = await self._pinned(session, topic)
            await session.write(
                f"INSERT INTO {self.keyspace}.metajournal (topic, segment, id, partition, offset) "
                f"VALUES (?, ?, ?, 0, 1) USING TIMESTAMP {pinned.base}",
                *(topic, head_place(pinned, journal_id), journal_id),
            )

    async def allow(self, topic: str, journal_id: str) -> None:
        async with self.connect() as session:
            pinned = await self._pinned(session, topic)
            await session.write(
                f"DELETE FROM {self.keyspace}.metajournal USING TIMESTAMP {pinned.base} "
                "WHERE topic = ? AND segment = ? AND id = ?",
                *(topic, head_place(pinned, journal_id), journal_id),
            )

    async def _pinned(self, session: Any, topic: str) -> Topic:
        rows = await session.fetch(f"SELECT value FROM {self.keyspace}.setting WHERE key = ?", f"topic:{topic}")
        return msgspec.json.decode(rows[0][0], type=Topic)


def _of_the_log(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what the log does not determine; a head is its cell."""
    if row.get("head"):
        row |= json.loads(row["head"]) | {"head": None}
    return {name: value for name, value in row.items() if name not in NOT_OF_THE_LOG}


def write_config(config: Config, path: Path) -> Path:
    """For a process of its own, which reads it with `read_config`."""
    path.write_bytes(msgspec.json.encode(config))
    return path


def read_config(path: str) -> Config:
    return msgspec.json.decode(Path(path).read_bytes(), type=Config)
