"""Documents: requests per second over HTTP and from Python, against the same SQLite transactions straight."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.document_limit import SqliteDocumentRows
from bench.document_pages import sorted_pages
from bench.document_requests import KINDS, QUERIES, InPython, Kind, OverHttp, Requester
from bench.embedded import Embedded
from bench.payloads import make_payloads
from bench.report import Line, line_of, relate
from bench.rounds import Contender, Round, alternate
from bench.server_process import serving
from bench.settings import Settings
from everlog.config import load_config
from everlog.documents.sqlite.document_store import FILE

UNIT = "requests/s"
WRITES: tuple[Kind, ...] = ("PUT", "PATCH")
OUT_S = 120.0
LOOK_S = 0.005
INCOMPLETE = "SELECT count(*) FROM outbox WHERE completed_at IS NULL"


def documents(settings: Settings) -> list[Line]:
    """One client, and several; then pages from indexes."""
    payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
    count = settings.documents
    served, here = settings.folder / "documents-served", settings.folder / "documents-here"
    served.mkdir()
    with (
        serving(load_config(served), settings.folder) as url,
        Embedded(here) as side,
        _straight(SqliteDocumentRows(settings.folder / "documents-straight", count, payloads), side) as straight,
    ):
        own = [
            DocumentAccess("Everlog over HTTP", OverHttp(url, count, payloads), side, served),
            DocumentAccess("Everlog from Python", InPython(side.log.documents, count, payloads), side, here),
        ]
        for one in own:
            side.run(one.open(settings.document_clients))
        lines = [line for kind in KINDS for line in _measure(settings, kind, own, straight)]
        for one in own:
            side.run(one.requester.close())
    return [*lines, *sorted_pages(settings)]


@contextmanager
def _straight(straight: SqliteDocumentRows, side: Embedded) -> Iterator[SqliteDocumentRows]:
    side.run(straight.open())
    try:
        yield straight
    finally:
        side.run(straight.close())


class DocumentAccess:
    """A way to documents, and how long the events of its writes take to get out."""

    def __init__(self, name: str, requester: Requester, side: Embedded, folder: Path) -> None:
        self.name = name
        self.requester = requester
        self.all_out: list[float] = []
        self._side = side
        self._file = folder / FILE

    async def open(self, clients: int) -> None:
        await self.requester.open(clients)
        await self.requester.fill(clients)
        await self._wait_until_out()

    def run(self, kind: Kind, requests: int, clients: int) -> Round:
        return self._side.run(self._run(kind, requests, clients))

    def wait(self, reading: Coroutine[Any, Any, Round]) -> Round:
        """The same loop for another one's reads."""
        return self._side.run(reading)

    async def _run(self, kind: Kind, requests: int, clients: int) -> Round:
        started = time.perf_counter()
        found = await self.requester.run(kind, requests, clients)
        if kind in WRITES:
            await self._wait_until_out()
            self.all_out.append(requests / (time.perf_counter() - started))
        return found

    async def _wait_until_out(self) -> None:
        """Nothing of a round is left to the next one."""
        deadline = time.monotonic() + OUT_S
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            while connection.execute(INCOMPLETE).fetchone()[0]:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name}: events are not out after {OUT_S:.0f} s")
                await asyncio.sleep(LOOK_S)


def _measure(settings: Settings, kind: Kind, own: list[DocumentAccess], straight: SqliteDocumentRows) -> list[Line]:
    few, many, clients = settings.document_single_requests, settings.document_requests, settings.document_clients
    contenders: list[Contender] = []
    for side in own:
        side.all_out.clear()
        contenders += [
            Contender(f"{side.name}, one client", partial(side.run, kind, few, 1)),
            Contender(f"{side.name}, {clients} at once", partial(side.run, kind, many, clients)),
        ]
    if kind in QUERIES:
        side = own[0]
        limits = [Contender("the store alone, one after another", lambda: side.wait(straight.query(kind, few)))]
    else:
        single = "one per transaction" if kind in WRITES else "one after another"
        limits = [Contender(f"SQLite straight, {single}", partial(straight.run, kind, few, 1))]
    if kind in WRITES:
        name = f"SQLite straight, {clients} per transaction"
        limits.append(Contender(name, partial(straight.run, kind, many, clients)))
    alternate([*contenders, *limits], settings.rounds)
    lines = [line_of(f"documents: {kind}", one, UNIT) for one in contenders]
    bounds = [line_of(f"documents: {kind}", one, UNIT) for one in limits]
    _compare(lines[0], lines[1], bounds)
    return [*lines, *_until_out(kind, own, clients), *bounds]


def _compare(alone: Line, together: Line, limits: list[Line]) -> None:
    """Over HTTP: one client against the limit of one, several against that of several; reads have but one limit."""
    for limit, own in zip(limits, (alone, together) if len(limits) > 1 else (together,), strict=True):
        relate(own, [limit])


def _until_out(kind: Kind, own: list[DocumentAccess], clients: int) -> list[Line]:
    """The same writes, up to the moment at which the last of their events was in the log."""
    if kind not in WRITES:
        return []
    # One client and several take turns, and the first turn is the warm-up.
    rates = [side.all_out[3::2] for side in own]
    return [
        Line(
            f"documents: {kind}",
            f"{side.name}, {clients} at once, until all events are out",
            statistics.median(found),
            UNIT,
            details={"rates": [round(rate, 1) for rate in found]},
        )
        for side, found in zip(own, rates, strict=True)
    ]
