"""How tables are made and migrated: under one lock, each step once, whichever process starts first.

Each part of Everlog says in a `TableSet` what its tables are. Their versions stand in the table `setting`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.errors import AccessDenied, Busy, EverlogError, NewerVersion, StorageFailed
from everlog.runtime.statements import load_statements

log = logging.getLogger("everlog.cassandra")

PACKAGE = "everlog.cassandra"
LOCK = "kafka-journal"
LOCK_TTL_S = 60
LOCK_RETRY_S = 0.1
MAX_LOCK_WAIT_S = 120.0
MIN_GC_GRACE_S = 864_000

_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_TABLES = "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?"
_COLUMNS = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name IN ?"
_COLUMN = re.compile(r"^\s*(\w+)\s+([^,\n]+?),?$", re.MULTILINE)
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"


def quoted(keyspace: str) -> str:
    """A keyspace as it stands in statements; as in CQL without quotes, capitals do not count."""
    return f'"{keyspace.lower()}"'


def keyspace_statements(package: str, keyspace: str, file: str = "statements.cql") -> dict[str, str]:
    """The named statements of a package's file, for this keyspace."""
    found = load_statements(package, file)
    return {name: _COMMENT.sub("", text).replace("{keyspace}", quoted(keyspace)) for name, text in found.items()}


class StepSeries(msgspec.Struct, frozen=True):
    """Steps that are counted under one key of `setting`: those of the migrations file that begin with `prefix`.

    `first` is the number of the first step; tables that are further back have a format from which nothing leads on. If
    another program counts there too (`shared`), a larger number than this version knows is no reason to refuse the
    keyspace.
    """

    key: str
    prefix: str = "step_"
    first: int = 1
    shared: bool = False


class NewTable(msgspec.Struct, frozen=True):
    """Settings that belong to a table that is made now, and not to one that was found."""

    table: str
    settings: tuple[tuple[str, str], ...]


class TableSet(msgspec.Struct, frozen=True):
    """The tables of one part of Everlog, as its package describes them.

    `tables.cql` makes them as they are today, `migrations` holds the steps that bring older ones there: each may run
    again, and its number counts only when it is done. Rows of `guarded` tables carry times from the log: a late write
    must still meet the tombstone that is newer than it. `shared` are tables that another program may have made: they
    get the columns that they lack.

    >>> TableSet("documents", "everlog.documents.cassandra").steps[0].key
    'everlog-schema-version-documents'
    """

    name: str
    package: str
    migrations: str | None = None
    series: tuple[StepSeries, ...] = ()
    guarded: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    new_tables: tuple[NewTable, ...] = ()

    @property
    def steps(self) -> tuple[StepSeries, ...]:
        """The series of steps; without one that is named, a set has one of its own."""
        return self.series or (StepSeries(f"everlog-schema-version-{self.name}"),)

    @property
    def settings(self) -> list[str]:
        """The keys of `setting` that say something about these tables."""
        return [one.key for one in self.steps] + [key for new in self.new_tables for key, _ in new.settings]

    def statements(self, keyspace: str, file: str = "statements.cql") -> dict[str, str]:
        """The named statements of the part's file, for this keyspace."""
        return keyspace_statements(self.package, keyspace, file)


class FoundSchema(NamedTuple):
    """What a keyspace holds: tables with their gc_grace_seconds, and of a set of tables the settings, and the columns
    (table, column) of those that are shared."""

    tables: Mapping[str, int]
    settings: Mapping[str, str]
    columns: Set[tuple[str, str]] = frozenset()

    def version(self, key: str) -> int | None:
        value = self.settings.get(key, "")
        return int(value) if value.isdecimal() else None


class _Series(NamedTuple):
    """A series of steps with the statements of its steps."""

    key: str
    first: int
    shared: bool
    steps: list[str]

    @property
    def last(self) -> int:
        return self.first + len(self.steps) - 1

    def done(self, found: FoundSchema) -> int:
        """The number of the last step that ran."""
        version = found.version(self.key)
        return self.first - 1 if version is None else version


class Schema:
    """Brings a keyspace to what this version of a part needs."""

    def __init__(self, session: Session, tables: TableSet) -> None:
        self._session = session
        self._config = session.config
        self._keyspace = session.config.keyspace.lower()
        self._set = tables
        self._cql = keyspace_statements(PACKAGE, self._keyspace)
        self._common = keyspace_statements(PACKAGE, self._keyspace, "tables.cql")
        self._own = tables.statements(self._keyspace, "tables.cql")
        self._steps = tables.statements(self._keyspace, tables.migrations) if tables.migrations else {}
        self._series = [
            _Series(
                one.key,
                one.first,
                one.shared,
                [text for name, text in self._steps.items() if name.startswith(one.prefix)],
            )
            for one in tables.steps
        ]

    async def prepare(self) -> FoundSchema:
        """The keyspace as it is now; created and migrated if need be and allowed."""
        found = await self._look()
        missing = self._missing(found)
        if missing:
            if not self._config.create_schema:
                raise StorageFailed(
                    f"the keyspace {self._keyspace} is not ready for the {self._set.name}: {missing}; set [cassandra] "
                    "create_schema = true once, with a role that may create and alter tables, or correct [cassandra] "
                    "keyspace"
                )
            log.info("keyspace %s, tables of the %s: %s", self._keyspace, self._set.name, missing)
            await self._create_first(found)
            async with locked(self._session) as lock:
                await self._bring_up(lock)
            found = await self._look()
            assert not self._missing(found), self._missing(found)
        return found

    async def _look(self) -> FoundSchema:
        tables: dict[str, int] = dict(await self._session.fetch(_TABLES, self._keyspace))
        settings: dict[str, str] = {}
        if "setting" in tables:
            settings = dict(await self._session.fetch(self._cql["some_settings"], self._set.settings))
        columns: set[tuple[str, str]] = set()
        if self._set.shared:
            found = await self._session.fetch(_COLUMNS, self._keyspace, list(self._set.shared))
            columns = {(table, column) for table, column in found}
        return FoundSchema(tables, settings, columns)

    def _missing(self, found: FoundSchema) -> str:
        """What is not as it must be; empty if nothing. Raises if a newer version was here."""
        for series in self._series:
            if series.done(found) > series.last and not series.shared:
                raise NewerVersion(
                    f"the keyspace {self._keyspace} has version {series.done(found)} of the tables of the "
                    f"{self._set.name} ({series.key}), this Everlog knows {series.last}: it was written by a newer "
                    "version, upgrade this one (pip install --upgrade everlog)"
                )
            known = found.version(series.key)
            if known is not None and known < series.first - 1:
                raise StorageFailed(
                    f"the keyspace {self._keyspace} has version {known} of the tables of the {self._set.name} "
                    f"({series.key}), which was never released: this Everlog begins with {series.first - 1}. Copy what "
                    "you need with the version that wrote it, and drop them, or set another [cassandra] keyspace"
                )
        absent = [name for name in (*self._common, *self._own) if name not in found.tables]
        if absent:
            return f"it has no table {', '.join(absent)}" if found.tables else "it does not exist, or has no tables"
        lacking = [f"{table}.{column}" for table, column, _ in self._lacking(found)]
        if lacking:
            return f"it has no column {', '.join(lacking)}"
        for series in self._series:
            if series.done(found) < series.last:
                return f"{series.key} is {found.version(series.key)}, {series.last} is needed"
        short = self._short_grace(found)
        return f"gc_grace_seconds of {', '.join(short)} is below {MIN_GC_GRACE_S}" if short else ""

    def _lacking(self, found: FoundSchema) -> list[tuple[str, str, str]]:
        """The columns that shared tables lack: table, column, type."""
        return [
            (table, column, kind)
            for table in self._set.shared
            if table in found.tables
            for column, kind in columns_of(self._own[table]).items()
            if (table, column) not in found.columns
        ]

    def _short_grace(self, found: FoundSchema) -> list[str]:
        return [name for name in self._set.guarded if found.tables.get(name, MIN_GC_GRACE_S) < MIN_GC_GRACE_S]

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
            await self._session.change_schema(self._common["locks"])

    def _datacenter(self) -> str:
        if self._config.local_datacenter is None:
            raise StorageFailed(
                "NetworkTopologyStrategy needs to know the data centre: set [cassandra] local_datacenter"
            )
        return self._config.local_datacenter.replace("'", "''")

    async def _bring_up(self, lock: SchemaLock) -> None:
        """Everything that is missing, as of now: the process that held the lock before may have done it."""
        found = await self._look()
        if not self._missing(found):
            return
        for name, text in (self._common | self._own).items():
            if name not in found.tables:
                await lock.change(text)
        for table, column, kind in self._lacking(found):
            await lock.change(f"ALTER TABLE {quoted(self._keyspace)}.{table} ADD {column} {kind}")
        made = [new for new in self._set.new_tables if new.table not in found.tables]
        for key, value in [setting for new in made for setting in new.settings]:
            await self._set_value(key, value)
        if any(name in found.tables for name in self._own):
            for series in self._series:
                await self._migrate(lock, series, series.done(found))
        else:
            for series in self._series:
                if found.version(series.key) is None or series.done(found) < series.last:
                    await self._set_value(series.key, str(series.last))
        for name in self._short_grace(found):
            table = f"{quoted(self._keyspace)}.{name}"
            await lock.change(f"ALTER TABLE {table} WITH gc_grace_seconds = {MIN_GC_GRACE_S}")

    async def _migrate(self, lock: SchemaLock, series: _Series, done: int) -> None:
        """Steps one by one; the version counts a step only when it is done."""
        for number in range(done + 1, series.last + 1):
            try:
                await lock.change(series.steps[number - series.first])
            except EverlogError as error:
                message = f"the step to {series.key} {number} failed: {error}; it runs again at the next start"
                raise (AccessDenied if isinstance(error, AccessDenied) else StorageFailed)(message) from error
            await self._set_value(series.key, str(number))

    async def _set_value(self, key: str, value: str) -> None:
        await self._session.write(self._cql["put_setting"], key, value, timestamp(int(time.time() * 1000)))


def columns_of(creation: str) -> dict[str, str]:
    """The columns that a CREATE TABLE of ours names, one to a line, with their types.

    >>> columns_of("CREATE TABLE t (\\n  a text,\\n  b int,\\n  PRIMARY KEY (a)\\n)")
    {'a': 'text', 'b': 'int'}
    """
    return dict(_COLUMN.findall(creation[creation.index("(") + 1 : creation.index("PRIMARY KEY")]))


@asynccontextmanager
async def locked(session: Session) -> AsyncIterator[SchemaLock]:
    """No other process changes tables of this keyspace meanwhile."""
    lock = SchemaLock(session)
    await lock.acquire()
    try:
        yield lock
    finally:
        await lock.release()


class SchemaLock:
    """The row in `locks` that kafka-journal uses too; it ends by itself if its owner dies."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cql = keyspace_statements(PACKAGE, session.config.keyspace)
        self._token = f"everlog {socket.gethostname()} {uuid.uuid4()}"

    async def acquire(self) -> None:
        deadline = time.monotonic() + MAX_LOCK_WAIT_S
        while True:
            now_ms = int(time.time() * 1000)
            values = (LOCK, now_ms + LOCK_TTL_S * 1000, timestamp(now_ms), self._token)
            if await self._settled(await self._session.write_if(self._cql["lock"], *values)):
                return
            if time.monotonic() > deadline:
                raise Busy(
                    f"another process has held the lock {LOCK!r} in the table locks for {MAX_LOCK_WAIT_S:.0f} s: if no "
                    "process creates or migrates tables, delete that row"
                )
            await asyncio.sleep(LOCK_RETRY_S)

    async def change(self, text: str) -> None:
        """One schema change, with a whole minute of the lock before it."""
        expiry = int(time.time() * 1000) + LOCK_TTL_S * 1000
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
