"""Documents on Cassandra: requests per second over HTTP and from Python, against the same batches straight."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from bench.cluster.connected import Connected
from bench.cluster.servers import Servers
from bench.cluster.settings import Settings
from bench.document_requests import (
    COLLECTION,
    INDEXED,
    KINDS,
    PAGE,
    QUERIES,
    Changes,
    InPython,
    Kind,
    OverHttp,
    Requester,
    StoreQueries,
    document,
)
from bench.payloads import Payload, make_payloads
from bench.report import Line, line_of
from bench.rounds import Contender, Round, alternate
from bench.server_process import serving
from everlog.cassandra.session import Session, connect, make_batch
from everlog.config import CassandraConfig
from everlog.documents.cassandra.document_store import CassandraDocuments
from everlog.documents.cassandra.tables import DOCUMENT_TABLES
from everlog.documents.model import DocumentChange

UNIT = "requests/s"
WRITES: tuple[Kind, ...] = ("PUT", "PATCH")
OUT_S = 120.0
LOOK_S = 0.02


def documents(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """One client and several, for each kind of request."""
    payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
    count, clients = settings.documents, settings.document_clients
    with (
        servers.fresh("served") as served,
        servers.fresh("here") as here,
        servers.fresh("straight") as straight,
        serving(served, settings.folder) as url,
        Connected(served) as beside,
        Connected(here) as side,
        Connected(straight),  # it makes the keyspace
    ):
        assert straight.cassandra is not None
        sides = {
            "Everlog over HTTP": (OverHttp(url, count, payloads), beside),
            "Everlog from Python": (InPython(side.log.documents, count, payloads), side),
            "the driver": (DriverRequester(straight.cassandra, count, payloads), side),
        }
        ways = [DocumentContender(name, requester, side, watched) for name, (requester, watched) in sides.items()]
        for way in ways:
            way.open(clients)
        lines = [line for kind in KINDS for line in _measure(settings, kind, ways)]
        for way in ways:
            way.close()
    return lines, []


def _measure(settings: Settings, kind: Kind, ways: list[DocumentContender]) -> list[Line]:
    few, many, clients = settings.document_single_requests, settings.document_requests, settings.document_clients
    contenders = []
    for way in ways:
        contenders += [
            Contender(f"{way.name}, one client", partial(way.run, kind, few, 1)),
            Contender(f"{way.name}, {clients} at once", partial(way.run, kind, many, clients)),
        ]
    alternate(contenders, settings.rounds)
    lines = [line_of(f"documents: {kind}", one, UNIT) for one in contenders]
    for line, limit in zip(lines, lines[-2:] * len(ways), strict=True):
        assert line.rate is not None
        assert limit.rate is not None
        if line is not limit:
            line.ratio = line.rate / limit.rate
    return lines


class DocumentContender:
    """A way to documents. A round of writes ends when its events are out, but that is not in its time."""

    def __init__(self, name: str, requester: Requester, side: Connected, watched: Connected) -> None:
        self.name = name
        self._requester = requester
        self._side = side
        self._watched = watched

    def open(self, clients: int) -> None:
        self._side.run(self._open(clients))
        self._watched.run(self._wait_until_out())

    async def _open(self, clients: int) -> None:
        await self._requester.open(clients)
        await self._requester.fill(clients)

    def close(self) -> None:
        self._side.run(self._requester.close())

    def run(self, kind: Kind, requests: int, clients: int) -> Round:
        found = self._side.run(self._requester.run(kind, requests, clients))
        if kind in WRITES:
            self._watched.run(self._wait_until_out())
        return found

    async def _wait_until_out(self) -> None:
        if isinstance(self._requester, DriverRequester):
            return
        own, deadline = self._watched.log.documents, time.monotonic() + OUT_S
        for path in [*(document(number) for number in range(self._requester.documents)), COLLECTION, INDEXED]:
            while await own.pending(path, limit=1):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name}: events are not out after {OUT_S:.0f} s")
                await asyncio.sleep(LOOK_S)


class DriverRequester(Requester):
    """The limit: the store's own conditional batch and reads with the driver; no outbox, no events, no decisions."""

    def __init__(self, cassandra: CassandraConfig, documents: int, payloads: Sequence[Payload]) -> None:
        super().__init__(documents, payloads)
        self._cassandra = cassandra
        self._cql = DOCUMENT_TABLES.statements(cassandra.keyspace)
        self._changes = Changes(documents, payloads)
        self._ready: dict[str, deque[DocumentChange]] = {}
        self._pending: dict[str, str] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._session: Session | None = None

    async def open(self, clients: int) -> None:
        self._store = await CassandraDocuments.open(self._cassandra)
        self._queries = StoreQueries(self._store)
        self._session = await connect(self._cassandra)

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    async def run(self, kind: Kind, requests: int, clients: int) -> Round:
        """Writes are decided beforehand."""
        if kind in WRITES:
            for change in self._changes.make(requests):
                self._ready.setdefault(change.place.uri, deque()).append(change)
        return await super().run(kind, requests, clients)

    async def request(self, client: int, kind: Kind, number: int) -> None:
        uri = document(number)
        if kind in QUERIES:
            await self._queries.read(kind)
            return
        if kind == "list":
            await self._fetch("head", COLLECTION)
            if len(await self._fetch("elements", COLLECTION, "", PAGE)) != PAGE:
                raise RuntimeError("the page is not full")
            return
        if kind in ("GET", "PATCH"):
            await self._fetch("head", uri)
            if not await self._fetch("row", uri, ""):
                raise RuntimeError(f"there is no {uri}")
        if kind != "GET":
            async with self._turns[uri]:  # a slow client may meet the next one at the same document
                await self._write(self._ready[uri].popleft())

    async def add(self, client: int, uri: str, number: int) -> None:
        body = msgspec.json.encode({**self.payload(number), "id": f"e-{number}"}).decode()
        await self.session.write(self._cql["put_row"], uri, f"e-{number}", body, 1, 0, 0)

    async def index(self) -> None:
        await self._queries.open()

    async def _fetch(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.session.fetch(self._cql[name], *values)

    async def _write(self, change: DocumentChange) -> None:
        head, row, one = change.head, change.row, change.transaction
        assert row is not None
        pending = msgspec.json.encode({one.revision: one.uuid}).decode()
        state = (head.revision, False, head.count, head.last_id, "[]", False, pending)
        condition = (one.uri, change.expected or None, self._pending.get(one.uri))
        body = (*change.place, row.body, row.revision, row.created_ms, row.modified_ms)
        requests = [("put_head", (*state, *condition)), ("put_row", body)]
        bound = [(await self.session.prepare(self._cql[name])).bind(list(values)) for name, values in requests]
        if not await self.session.attempt_if(make_batch(bound), self._cql["put_head"]):
            raise RuntimeError(f"{one.uri} is not at revision {change.expected}")
        self._pending[one.uri] = pending

    async def close(self) -> None:
        await self.session.close()
        await self._store.close()
