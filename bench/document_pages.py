"""A page of a sorted collection: from an index with a million elements, against one with ten thousand."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

import msgspec

from bench.embedded import Embedded
from bench.report import Line, Target, line_of
from bench.rounds import Contender, Round, alternate
from bench.settings import Settings
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.documents.sqlite.document_store import FILE, SQL
from everlog.sqlite.connection import connect, transaction

SIZE = 50
FIELD = "rank"
INDEX = "by-rank"
TOP = 10**9
PER_TRANSACTION = 10_000
WITHIN = 1.5


def sorted_pages(settings: Settings) -> list[Line]:
    """The first page, and one from anywhere in the middle; both collections are in one file."""
    sizes = (settings.document_few_elements, settings.document_many_elements)
    with Embedded(settings.folder / "document-pages") as side:
        pages = Pages(side, settings.seed)
        for size in sizes:
            pages.fill(size)
        lines = []
        for name, anywhere in (("the first page", False), ("a page from anywhere", True)):
            contenders = [
                Contender(
                    f"Everlog, {name}, index of {size:,}", partial(pages.read, size, settings.document_pages, anywhere)
                )
                for size in sizes
            ]
            alternate(contenders, settings.rounds)
            lines += _compare(name, contenders)
    return lines


def _compare(name: str, contenders: list[Contender]) -> list[Line]:
    few, many = (line_of("documents: sorted", one, "pages/s") for one in contenders)
    assert few.rate is not None
    assert many.rate is not None
    promise = f"documents: {name} of the larger index, as a multiple of the smaller one's time"
    many.target = Target(promise, few.rate / many.rate, WITHIN, "under", "x")
    return [few, many]


class Pages:
    """Collections with an index on a number; elements come into the table in bulk, indexes are built by Everlog."""

    def __init__(self, side: Embedded, seed: int) -> None:
        self._side = side
        self._chance = random.Random(seed)

    def fill(self, size: int) -> None:
        uri = _uri(size)
        self._side.run(self._side.log.documents.open())
        connection = connect(self._side.folder / FILE)
        try:
            rows = self._rows(uri, size)
            for _ in range(0, size, PER_TRANSACTION):
                with transaction(connection):
                    group = [row for row, _ in zip(rows, range(PER_TRANSACTION), strict=False)]
                    connection.executemany(SQL["put_row"], group)
            connection.execute(SQL["put_head"], (uri, 1, False, size, None, "[]", False))
        finally:
            connection.close()
        self._side.run(self._build(uri))

    def _rows(self, uri: str, size: int) -> Iterator[tuple[str, str, str, int, int, int]]:
        for number in range(size):
            item = f"e-{number:07}"
            body = {FIELD: self._chance.randrange(TOP), "name": f"element {number}", "id": item}
            yield uri, item, msgspec.json.encode(body).decode(), 1, 0, 0

    async def _build(self, uri: str) -> None:
        documents = self._side.log.documents
        await documents.create_index(uri, IndexNew(INDEX, (IndexSortItem(FIELD, "decimal"),)))
        await documents.build_indexes()
        if (await documents.index(uri, INDEX)).status is not IndexStatus.READY:
            raise RuntimeError(f"the index of {uri} is not ready")

    def read(self, size: int, pages: int, anywhere: bool) -> Round:
        return self._side.run(self._read(_uri(size), pages, anywhere))

    async def _read(self, uri: str, pages: int, anywhere: bool) -> Round:
        documents, clock, latencies = self._side.log.documents, time.perf_counter, []
        for _ in range(pages):
            # Not so near to the end that the page would be short.
            wanted = f"{FIELD} >= {self._chance.randrange(TOP * 9 // 10)}" if anywhere else ""
            before = clock()
            page = await documents.list(uri, filter=wanted, sort=FIELD, size=SIZE)
            latencies.append(clock() - before)
            if (count := len(page.elements)) != SIZE:
                raise RuntimeError(f"a page of {uri} has {count} elements, not {SIZE}")
        return Round(pages, sum(latencies), latencies)


def _uri(size: int) -> str:
    return f"collection-{size}~"
