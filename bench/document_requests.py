"""The requests of documents, over HTTP and from Python: the same for both, embedded and on a cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import urlencode

import msgspec

from bench.payloads import Payload
from bench.rounds import Round
from bench.server_process import Client
from everlog.documents.api import Documents
from everlog.documents.evaluator import Evaluator
from everlog.documents.filters.parser import parse_filter
from everlog.documents.indexes import Index, IndexNew, IndexSortItem, IndexStatus
from everlog.documents.model import (
    DocumentChange,
    DocumentCommand,
    DocumentHead,
    DocumentRow,
    WriteSettings,
    accept_all,
    decide,
)
from everlog.documents.order import complete, parse_sort
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentStore
from everlog.documents.query_plan import QueryPlan, make_plan

Kind = Literal["PUT", "GET", "PATCH", "list", "query", "indexed query"]
KINDS: tuple[Kind, ...] = ("PUT", "GET", "PATCH", "list", "query", "indexed query")
QUERIES: tuple[Kind, ...] = ("query", "indexed query")
CONTENT = "/hyper-storage/content"
COLLECTION = "elements~"
INDEXED = "indexed~"
PAGE = 100
# About a ninth of the elements, so fewer than a page.
FILTER, SORT = "price >= 9000", "price"
INDEX = IndexNew("by-price", (IndexSortItem("price", "decimal"),))
READY_S, LOOK_S = 60.0, 0.02
OK = (200, 201)


def document(number: int) -> str:
    """The path of a document."""
    return f"shop/order-{number}"


class Requester(ABC):
    """Makes requests; several clients may, each one after another."""

    def __init__(self, documents: int, payloads: Sequence[Payload]) -> None:
        self.documents = documents
        self._payloads = payloads
        self._patches = itertools.count()

    @abstractmethod
    async def open(self, clients: int) -> None:
        """Be ready for this number of clients at once."""

    async def ready(self) -> None:  # noqa: B027
        """A round is about to begin; this is not in its time."""

    @abstractmethod
    async def request(self, client: int, kind: Kind, number: int) -> None:
        """One request; raises unless it is done."""

    @abstractmethod
    async def add(self, client: int, uri: str, number: int) -> None:
        """Put an element into a collection."""

    @abstractmethod
    async def index(self) -> None:
        """Give one collection its index, and wait until that is ready."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connections."""

    def payload(self, number: int) -> Payload:
        return self._payloads[number % len(self._payloads)]

    def patch(self) -> Payload:
        """Something new each time."""
        return {"quantity": next(self._patches)}

    async def fill(self, clients: int) -> None:
        """All documents, and two collections of two pages."""
        await self.run("PUT", self.documents, clients)
        numbers = iter(range(2 * PAGE))

        async def work(client: int) -> None:
            for number in numbers:
                for uri in (COLLECTION, INDEXED):
                    await self.add(client, uri, number)

        await asyncio.gather(*(work(client) for client in range(clients)))
        await self.index()

    async def run(self, kind: Kind, requests: int, clients: int) -> Round:
        """Requests, shared by the clients, over all documents in turns."""
        clock, latencies = time.perf_counter, list[float]()
        numbers: Iterator[int] = iter(range(requests))

        async def work(client: int) -> None:
            for number in numbers:
                before = clock()
                await self.request(client, kind, number % self.documents)
                latencies.append(clock() - before)

        await self.ready()
        started = clock()
        async with asyncio.TaskGroup() as tasks:
            for client in range(clients):
                tasks.create_task(work(client))
        return Round(requests, clock() - started, latencies)


class OverHttp(Requester):
    """A connection for each client, which stays open for a round: a server closes idle connections."""

    def __init__(self, url: str, documents: int, payloads: Sequence[Payload]) -> None:
        super().__init__(documents, payloads)
        self._url = url
        self._clients: list[Client] = []

    async def open(self, clients: int) -> None:
        self._clients = [await Client.connect(self._url) for _ in range(clients)]

    async def ready(self) -> None:
        await self.close()
        await self.open(len(self._clients))

    async def request(self, client: int, kind: Kind, number: int) -> None:
        if kind == "list":
            await self._send(client, "GET", f"{COLLECTION}?size={PAGE}")
            return
        if kind in QUERIES:
            asked = urlencode({"filter": FILTER, "sort": SORT, "size": PAGE})
            await self._send(client, "GET", f"{INDEXED if kind == 'indexed query' else COLLECTION}?{asked}")
            return
        body = self.payload(number) if kind == "PUT" else self.patch() if kind == "PATCH" else None
        await self._send(client, kind, document(number), body)

    async def add(self, client: int, uri: str, number: int) -> None:
        await self._send(client, "PUT", f"{uri}/e-{number}", self.payload(number))

    async def index(self) -> None:
        where, data = f"/hyper-storage/indexes/{INDEXED}", msgspec.json.encode(INDEX)
        status, answer = await self._clients[0].request("POST", where, data)
        if status not in OK:
            raise RuntimeError(f"POST {where}: {status} {answer[:200]!r}")
        async with asyncio.timeout(READY_S):
            while True:
                _, answer = await self._clients[0].request("GET", f"{where}/{INDEX.index_id}", b"")
                if json.loads(answer)["status"] == "ready":
                    return
                await asyncio.sleep(LOOK_S)

    async def _send(self, client: int, method: str, path: str, body: Payload | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = await self._clients[client].request(method, f"{CONTENT}/{path}", data)
        if status not in OK:
            raise RuntimeError(f"{method} {path}: {status} {answer[:200]!r}")

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


class InPython(Requester):
    """`log.documents`, without HTTP."""

    def __init__(self, own: Documents, documents: int, payloads: Sequence[Payload]) -> None:
        super().__init__(documents, payloads)
        self._own = own

    async def open(self, clients: int) -> None:
        """It needs nothing."""

    async def request(self, client: int, kind: Kind, number: int) -> None:
        if kind == "list":
            page = await self._own.list(COLLECTION, size=PAGE)
            if len(page.json) < PAGE:
                raise RuntimeError("the page is empty")
        elif kind in QUERIES:
            await self._own.list(
                INDEXED if kind == "indexed query" else COLLECTION, filter=FILTER, sort=SORT, size=PAGE
            )
        elif kind == "PUT":
            await self._own.put(document(number), self.payload(number))
        elif kind == "PATCH":
            await self._own.patch(document(number), self.patch())
        else:
            await self._own.get(document(number))

    async def add(self, client: int, uri: str, number: int) -> None:
        await self._own.put(f"{uri}/e-{number}", self.payload(number))

    async def index(self) -> None:
        await self._own.create_index(INDEXED, INDEX)
        await self._own.build_indexes()

    async def close(self) -> None:
        """It has nothing."""


class StoreQueries:
    """The rows that a query needs, read from the store alone: not decoded, not compared."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._plans: dict[Kind, QueryPlan] = {}

    async def open(self) -> None:
        """Build the index."""
        made = Index(str(INDEX.index_id), INDEX.sort_by, None, IndexStatus.INDEXING, str(uuid.uuid4()))
        await self._store.create_index(INDEXED, made)
        evaluator = Evaluator()
        while not await self._store.build(INDEXED, made, evaluator.locate, limit=PAGE):
            pass
        condition, sort = parse_filter(FILTER), complete(parse_sort(SORT))
        self._plans = {
            "query": make_plan(condition, sort, []),
            "indexed query": make_plan(condition, sort, await self._store.indexes(INDEXED)),
        }

    async def read(self, kind: Kind) -> None:
        plan, count = self._plans[kind], 0
        for where in plan.ranges:
            limit, max_bytes = 2 * PAGE, 2**30
            if plan.index is None:
                found = await self._store.elements(
                    COLLECTION, where, reverse=plan.reverse, limit=limit, max_bytes=max_bytes
                )
            else:
                found = await self._store.entries(
                    INDEXED, plan.index, where, reverse=plan.reverse, limit=limit, max_bytes=max_bytes
                )
            count += len(found.entries)
        if not count:
            raise RuntimeError("the query found nothing")


class Changes:
    """What writes store, decided beforehand: revision after revision of each document."""

    def __init__(self, documents: int, payloads: Sequence[Payload]) -> None:
        self._payloads = payloads
        self._states: list[tuple[DocumentHead | None, DocumentRow | None]] = [(None, None)] * documents

    def make(self, count: int) -> list[DocumentChange]:
        """The next writes, over all documents in turns."""
        return [self._next(number % len(self._states), number) for number in range(count)]

    def _next(self, at: int, number: int) -> DocumentChange:
        head, row = self._states[at]
        now_ms, entropy = time.time_ns() // 1_000_000, uuid.uuid4().int
        name = str(entropy)
        body = self._payloads[number % len(self._payloads)]
        command = DocumentCommand("put", DocumentPlace(document(at)), body, message_id=name, correlation_id=name)
        made = decide(
            head, row, None, command, now_ms=now_ms, entropy=entropy, settings=WriteSettings(), check=accept_all
        )
        assert isinstance(made, DocumentChange)
        self._states[at] = (made.head, made.row)
        return made
