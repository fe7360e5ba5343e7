"""The limit of documents in one file: the same statements, straight, in as many transactions; no HTTP, no events."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from bench.document_requests import COLLECTION, INDEXED, PAGE, Changes, Kind, StoreQueries, document
from bench.payloads import Payload
from bench.peer import timed
from bench.rounds import Round
from everlog.documents.ids import TransactionId
from everlog.documents.model import DocumentChange
from everlog.documents.sqlite.document_store import FILE, SQL, SqliteDocuments
from everlog.sqlite.connection import connect, transaction


class SqliteDocumentRows:
    """A file of documents, written and read with `sqlite3` alone."""

    def __init__(self, folder: Path, documents: int, payloads: Sequence[Payload]) -> None:
        folder.mkdir()
        self._documents = documents
        self._payloads = payloads
        self._changes = Changes(documents, payloads)
        self._folder = folder

    async def open(self) -> None:
        """Make the tables, and fill them."""
        self._store = SqliteDocuments(self._folder)
        self._connection = connect(self._folder / FILE)
        self.run("PUT", self._documents, 100)
        with transaction(self._connection):
            for uri in (COLLECTION, INDEXED):
                self._connection.execute(SQL["put_head"], (uri, 1, False, 2 * PAGE, None, "[]", False))
                for number in range(2 * PAGE):
                    payload, item = self._payloads[number % len(self._payloads)], f"e-{number}"
                    body = json.dumps({**payload, "id": item}, separators=(",", ":"))
                    self._connection.execute(SQL["put_row"], (uri, item, body, 1, 0, 0))
        self._queries = StoreQueries(self._store)
        await self._queries.open()

    async def close(self) -> None:
        self._connection.close()
        await self._store.close()

    async def query(self, kind: Kind, requests: int) -> Round:
        """Queries, one after another."""
        clock, latencies = time.perf_counter, list[float]()
        for _ in range(requests):
            before = clock()
            await self._queries.read(kind)
            latencies.append(clock() - before)
        return Round(requests, sum(latencies), latencies)

    def run(self, kind: Kind, requests: int, together: int) -> Round:
        """Requests, `together` of them to a transaction if they write."""
        if kind == "list":
            return timed(lambda number: self._page(), requests)
        if kind == "GET":
            return timed(lambda number: self._load(document(number % self._documents)), requests)
        changes = iter(self._changes.make(requests))
        started = time.perf_counter()
        while group := list(itertools.islice(changes, together)):
            if kind == "PATCH":
                for change in group:
                    self._load(change.place.uri)
            with transaction(self._connection):
                for change in group:
                    write(self._connection, change)
        return Round(requests, time.perf_counter() - started)

    def _load(self, uri: str) -> None:
        head = self._connection.execute(SQL["head"], (uri,)).fetchall()
        row = self._connection.execute(SQL["row"], (uri, "")).fetchall()
        if not head or not row:
            raise RuntimeError(f"there is no {uri}")

    def _page(self) -> None:
        self._connection.execute(SQL["head"], (COLLECTION,)).fetchall()
        rows = self._connection.execute(SQL["elements"], (COLLECTION, "", None, PAGE)).fetchall()
        if len(rows) != PAGE:
            raise RuntimeError(f"the page has {len(rows)} elements, not {PAGE}")


def write(connection: sqlite3.Connection, change: DocumentChange) -> None:
    """What the store writes for one PUT."""
    head, row, one = change.head, change.row, change.transaction
    assert row is not None
    found = connection.execute(SQL["revision"], (one.uri,)).fetchone()
    if (0 if found is None else found[0]) != change.expected:
        raise RuntimeError(f"{one.uri} is not at revision {change.expected}")
    quantum = TransactionId.parse(one.id).quantum
    values = (one.uri, one.uuid, one.revision, one.item, quantum, one.event, one.old_body, True, None)
    connection.execute(SQL["add_transaction"], values)
    connection.execute(SQL["put_head"], (one.uri, head.revision, False, head.count, head.last_id, "[]", False))
    connection.execute(SQL["put_row"], (*change.place, row.body, row.revision, row.created_ms, row.modified_ms))
