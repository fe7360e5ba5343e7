"""Tables: created and migrated under a lock, once, whoever starts first.

Two versions are kept in `setting`: kafka-journal's own, whose steps are carried on where it stopped, and ours.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.errors import AccessDenied, Busy, EverlogError, NewerVersion, StorageFailed
from everlog.runtime.statements import load_statements

log = logging.getLogger("everlog.cassandra")

PACKAGE = "everlog.store.cassandra"
KAFKA_JOURNAL_VERSION = "schema-version"
EVERLOG_VERSION = "everlog-schema-version"
# Set when Everlog itself made the table of heads: then none can lie in one of the hundred old segments.
HEAD_SEGMENTS = "everlog-head-segments"
LOCK = "kafka-journal"
LOCK_SECONDS = 60
LOCK_RETRY = 0.1
LOCK_WAIT = 120.0
MIN_GC_GRACE = 864_000
# The tables whose rows carry times from the log: a late write must still meet the tombstone that is newer than it.
GUARDED = (
    "metajournal",
    "journal",
    "gap",
    "pointer2",
    "snapshot_buffer",
    "quarantine",
    "tag_views",
    "tag_write_progress",
)
KAFKA_JOURNAL_TABLES = ("journal", "pointer2", "setting", "metajournal")

_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_TABLES = "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?"
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"


def quoted(keyspace: str) -> str:
    """A keyspace as it stands in statements; as in CQL without quotes, capitals do not count."""
    return f'"{keyspace.lower()}"'


def keyspace_statements(package: str, keyspace: str, file: str = "statements.cql") -> dict[str, str]:
    """The named statements of a package's file, for this keyspace."""
    found = load_statements(package, file)
    return {name: _COMMENT.sub("", text).replace("{keyspace}", quoted(keyspace)) for name, text in found.items()}


statements = partial(keyspace_statements, PACKAGE)


class FoundSchema(NamedTuple):
    """What a keyspace holds: tables with their gc_grace_seconds, and the settings of this module."""

    tables: Mapping[str, int]
    settings: Mapping[str, str]

    def version(self, name: str) -> int | None:
        value = self.settings.get(name, "")
        return int(value) if value.isdecimal() else None

    @property
    def legacy_heads(self) -> bool:
        """Whether heads may lie in one of a hundred segments."""
        return HEAD_SEGMENTS not in self.settings


class Schema:
    """Brings a keyspace to what this version needs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._config = session.config
        self._keyspace = session.config.keyspace.lower()
        self._cql = statements(self._keyspace)
        self._creations = statements(self._keyspace, "tables.cql")
        self._steps = statements(self._keyspace, "migrations.cql")
        self._foreign = [text for name, text in self._steps.items() if name.startswith("kafka_journal_")]
        self._own = [text for name, text in self._steps.items() if name.startswith("everlog_")]

    async def prepare(self) -> FoundSchema:
        """The keyspace as it is now; created and migrated if need be and allowed."""
        found = await self._look()
        missing = self._missing(found)
        if missing:
            if not self._config.create_schema:
                raise StorageFailed(
                    f"the keyspace {self._keyspace} is not ready: {missing}; set [cassandra] create_schema = true "
                    "once, with a role that may create and alter tables, or correct [cassandra] keyspace"
                )
            log.info("keyspace %s: %s", self._keyspace, missing)
            await self._create_first(found)
            async with self.locked() as lock:
                await self._bring_up(lock)
            found = await self._look()
            assert not self._missing(found), self._missing(found)
        return found

    async def _look(self) -> FoundSchema:
        tables: dict[str, int] = dict(await self._session.fetch(_TABLES, self._keyspace))
        settings: dict[str, str] = {}
        if "setting" in tables:
            names = [KAFKA_JOURNAL_VERSION, EVERLOG_VERSION, HEAD_SEGMENTS]
            settings = dict(await self._session.fetch(self._cql["some_settings"], names))
        return FoundSchema(tables, settings)

    def _missing(self, found: FoundSchema) -> str:
        """What is not as it must be; empty if nothing. Raises if somebody newer was here."""
        own = found.version(EVERLOG_VERSION) or 0
        if own > len(self._own):
            raise NewerVersion(
                f"the keyspace {self._keyspace} has schema version {own}, this Everlog knows {len(self._own)}: it was "
                "written by a newer version, upgrade this one (pip install --upgrade everlog)"
            )
        absent = [name for name in self._creations if name not in found.tables]
        if absent:
            return f"it has no table {', '.join(absent)}" if found.tables else "it does not exist, or has no tables"
        foreign = found.version(KAFKA_JOURNAL_VERSION)
        if foreign is None or foreign < len(self._foreign) - 1:
            return f"{KAFKA_JOURNAL_VERSION} is {foreign}, {len(self._foreign) - 1} is needed"
        if own < len(self._own):
            return f"{EVERLOG_VERSION} is {own}, {len(self._own)} is needed"
        short = self._short_grace(found)
        return f"gc_grace_seconds of {', '.join(short)} is below {MIN_GC_GRACE}" if short else ""

    def _short_grace(self, found: FoundSchema) -> list[str]:
        return [name for name in GUARDED if found.tables.get(name, MIN_GC_GRACE) < MIN_GC_GRACE]

    async def _create_first(self, found: FoundSchema) -> None:
        """Keyspace and lock table: what comes before there can be a lock."""
        if not found.tables and not await self._session.fetch(_KEYSPACE, self._keyspace):
            strategy, factor = self._config.replication_strategy, self._config.replication_factor
            place = "replication_factor" if strategy == "SimpleStrategy" else self._datacenter()
            try:
                await self._session.change_schema(
                    f"CREATE KEYSPACE IF NOT EXISTS {quoted(self._keyspace)} "
                    f"WITH replication = {{'class': '{strategy}', '{place}': {factor}}}"
                )
            except AccessDenied as error:
                raise AccessDenied(
                    f"{error}; or let an administrator create the keyspace, and grant CREATE, ALTER, DROP, SELECT and "
                    "MODIFY on it"
                ) from error
        if "locks" not in found.tables:
            await self._session.change_schema(self._creations["locks"])

    def _datacenter(self) -> str:
        if self._config.local_datacenter is None:
            raise StorageFailed(
                "NetworkTopologyStrategy needs to know the data centre: set [cassandra] local_datacenter"
            )
        return self._config.local_datacenter.replace("'", "''")

    async def _bring_up(self, lock: _Lock) -> None:
        """Everything that is missing, as of now: whoever held the lock before may have done it."""
        found = await self._look()
        if not self._missing(found):
            return
        fresh = not any(name in found.tables for name in KAFKA_JOURNAL_TABLES)
        for name, text in self._creations.items():
            if name not in found.tables:
                await lock.change(text)
        if "metajournal" not in found.tables:
            await lock.change(self._steps["new_expire_on_index"])
            await self._set(HEAD_SEGMENTS, "10000")
        if fresh:
            await self._set(KAFKA_JOURNAL_VERSION, str(len(self._foreign) - 1))
            await self._set(EVERLOG_VERSION, str(len(self._own)))
        else:
            await self._migrate(lock, found)
        for name in self._short_grace(found):
            table = f"{quoted(self._keyspace)}.{name}"
            await lock.change(f"ALTER TABLE {table} WITH gc_grace_seconds = {MIN_GC_GRACE}")

    async def _migrate(self, lock: _Lock, found: FoundSchema) -> None:
        """Steps one by one; the version counts a step only when it is done."""
        foreign = found.version(KAFKA_JOURNAL_VERSION)
        for number in range(0 if foreign is None else foreign + 1, len(self._foreign)):
            await self._step(lock, KAFKA_JOURNAL_VERSION, number, self._foreign[number])
        for number in range(found.version(EVERLOG_VERSION) or 0, len(self._own)):
            await self._step(lock, EVERLOG_VERSION, number + 1, self._own[number])

    async def _step(self, lock: _Lock, name: str, number: int, text: str) -> None:
        try:
            await lock.change(text)
        except EverlogError as error:
            message = f"the step to {name} {number} failed: {error}; it runs again at the next start"
            raise (AccessDenied if isinstance(error, AccessDenied) else StorageFailed)(message) from error
        await self._set(name, str(number))

    async def _set(self, key: str, value: str) -> None:
        await self._session.write(self._cql["put_setting"], key, value, timestamp(int(time.time() * 1000)))

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[_Lock]:
        """Nobody else changes tables of this keyspace meanwhile."""
        lock = _Lock(self._session, self._cql)
        await lock.acquire()
        try:
            yield lock
        finally:
            await lock.release()


class _Lock:
    """The row in `locks` that kafka-journal uses too; it ends by itself if its owner dies."""

    def __init__(self, session: Session, cql: Mapping[str, str]) -> None:
        self._session = session
        self._cql = cql
        self._token = f"everlog {socket.gethostname()} {uuid.uuid4()}"

    async def acquire(self) -> None:
        deadline = time.monotonic() + LOCK_WAIT
        while True:
            now_ms = int(time.time() * 1000)
            values = (LOCK, now_ms + LOCK_SECONDS * 1000, timestamp(now_ms), self._token)
            if await self._settled(await self._session.write_if(self._cql["lock"], *values)):
                return
            if time.monotonic() > deadline:
                raise Busy(
                    f"somebody has held the lock {LOCK!r} in the table locks for {LOCK_WAIT:.0f} s: if no other "
                    "process creates or migrates tables, delete that row"
                )
            await asyncio.sleep(LOCK_RETRY)

    async def change(self, text: str) -> None:
        """One schema change, with a whole minute of the lock before it."""
        expiry = int(time.time() * 1000) + LOCK_SECONDS * 1000
        if not await self._settled(
            await self._session.write_if(self._cql["renew"], expiry, self._token, LOCK, self._token)
        ):
            raise Busy("the lock on the tables ran out, because a schema change took too long: start again")
        await self._session.change_schema(text)

    async def release(self) -> None:
        await self._session.write_if(self._cql["unlock"], LOCK, self._token)

    async def _settled(self, applied: bool | None) -> bool:
        """Whether the lock is ours; if the outcome of the write is unknown, the table says."""
        if applied is None:
            rows = await self._session.fetch(self._cql["lock_holder"], LOCK, serial=True)
            return bool(rows) and rows[0][0] == self._token
        return applied
