"""The past in pages, and where feeds begin: in this process and through a server, the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import DocumentsConfig
from everlog.console.server import serving
from everlog.documents.api import Documents
from everlog.documents.bodies import merge, without_nulls
from everlog.documents.elements_past import ElementsPast
from everlog.documents.factory import document_journal
from everlog.documents.history import DocumentEvent
from everlog.errors import DocumentConflict, DocumentNotFound, InvalidDocument, QueryLimited
from tests.support import small_config
from tests.waiting import until

C = "/hyper-storage/content/"
MAX_HISTORY = 60


class Served(NamedTuple):
    """A log, its documents by way of a server or not, and a client of the server."""

    log: Everlog
    docs: Documents
    http: httpx.AsyncClient


@pytest.fixture(params=["embedded", "http"])
async def served(request, tmp_path) -> AsyncIterator[Served]:
    settings = DocumentsConfig(max_history=MAX_HISTORY, page_size=4, feed_poll_interval_s=0.05)
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=settings)
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        yield Served(log, (log if request.param == "embedded" else remote).documents, http)


async def links(http: httpx.AsyncClient, url: str | None) -> list[list[Any]]:
    """All pages, each by the link of the one before it."""
    found = []
    while url is not None:
        answer = await http.get(url)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        found.append(body["_embedded"]["els"])
        url = body.get("_links", {}).get("next", {}).get("href")
    return found


async def no_event(items: AsyncGenerator[DocumentEvent | int, None]) -> None:
    async with asyncio.timeout(60):
        async for item in items:
            assert not isinstance(item, DocumentEvent)


async def test_history_has_pages_in_both_directions(served):
    docs, http = served.docs, served.http
    for n in range(11):
        await docs.put(f"c:1~/{n % 3}", {"n": n})
    whole = list(range(1, 12))
    assert [one.revision async for one in docs.history("c:1~")] == whole
    assert [one.revision async for one in docs.history("c:1~", reverse=True)] == whole[::-1]
    assert [one.revision async for one in docs.history("c:1~", after=3, before=9, limit=4)] == [4, 5, 6, 7]
    assert [one.revision async for one in docs.history("c:1~", after=3, before=9, reverse=True)] == [8, 7, 6, 5, 4]
    page = await docs.history_page("c:1~", size=5, reverse=True, before=9)
    assert ([one.revision for one in page.events], page.next) == ([8, 7, 6, 5, 4], 4)
    assert (await docs.history_page("c:1~", size=11)).next is None
    for size in (0, 1001, -1):
        with pytest.raises(InvalidDocument):
            await docs.history_page("c:1~", size=size)
    for size in (1, 2, 3, 11, 12):
        for how, wanted in (("history", whole), ("history=reverse", whole[::-1])):
            pages = await links(http, f"{C}c:1~?{how}&size={size}")
            assert [one["headers"]["revision"] for page in pages for one in page] == wanted
            assert len(pages) == -(-11 // size), (how, size)
    pages = await links(http, f"{C}c:1~?history=reverse&size=2&after=2&before=8")
    assert [[one["headers"]["revision"] for one in page] for page in pages] == [[7, 6], [5, 4], [3]]
    lines = await http.get(f"{C}c:1~?history=reverse", headers={"Accept": "application/x-ndjson"})
    assert [msgspec.json.decode(line)["headers"]["revision"] for line in lines.text.splitlines()] == whole[::-1]


async def test_the_history_of_an_element_reads_a_bounded_part_at_a_time(served):
    """What it shows lies far apart among the changes of others: pages may be short, or empty, and lead on."""
    docs, http = served.docs, served.http
    await docs.put("c~/x", {"n": 1})
    for n in range(MAX_HISTORY + 10):
        await docs.put("c~/y", {"n": n})
    await docs.patch("c~/x", {"n": 2})
    assert [one.body["n"] async for one in docs.history("c~/x")] == [1, 2]
    assert [one.body["n"] async for one in docs.history("c~/x", reverse=True)] == [2, 1]
    pages = await links(http, f"{C}c~/x?history")
    assert [len(page) for page in pages] == [1, 1]
    assert [len(page) for page in await links(http, f"{C}c~/x?history=reverse")] == [1, 1]
    with pytest.raises(QueryLimited, match="max_history") as caught:
        await docs.at("c~/x", MAX_HISTORY + 12)
    assert caught.value.code == "history-events-limited"
    with pytest.raises(QueryLimited):
        await docs.elements_at("c~", MAX_HISTORY + 12)
    assert await docs.at("c~/y", 30) == {"n": 28, "id": "y"}


async def test_a_collection_as_it_was_has_pages(served):
    docs, http = served.docs, served.http
    for n in range(10):
        await docs.put(f"c~/{n}:", {"n": n})
    await docs.patch("c~/3:", {"n": 30, "m": 1})
    await docs.delete("c~/4:")
    moment = datetime.now(UTC)
    await until(lambda: datetime.now(UTC) > moment + timedelta(milliseconds=2))
    await docs.delete("c~")
    await docs.put("c~/late", {})
    wanted = [{"n": n, "id": f"{n}:"} for n in range(10) if n != 4]
    wanted[3] = {"n": 30, "m": 1, "id": "3:"}
    key = lambda one: sorted(one.items())  # noqa: E731
    assert list(map(key, await docs.at("c~", 12))) == list(map(key, wanted))
    assert [one["id"] for one in await docs.at("c~", 11)] == [f"{n}:" for n in range(10)]
    assert await docs.at("c~", 14) == [{"id": "late"}]
    page = await docs.elements_at("c~", 12, size=2, after="2:")
    assert ([one["id"] for one in page.elements], page.next, page.revision) == (["3:", "5:"], {"after": "5:"}, 12)
    for revision in (13, 15, 0):
        with pytest.raises(DocumentNotFound):
            await docs.at("c~", revision)
    for at in ("12", moment.isoformat().replace("+00:00", "Z")):
        pages = await links(http, f"{C}c~?at={at}&size=4")
        assert [[one["id"] for one in page] for page in pages] == [
            ["0:", "1:", "2:", "3:"],
            ["5:", "6:", "7:", "8:"],
            ["9:"],
        ]
    for query in ("size=0", "size=x", "after=5", "after=[1]", 'after="'):
        answer = await http.get(f"{C}c~?at=12&{query}")
        assert answer.status_code == 400, (query, answer.text)


async def test_a_feed_behind_the_end_says_so(served):
    """Before the stream begins, with where to go on; also of what was never written, and after a purge of the log."""
    log, docs, http = served
    await docs.put("d", 1, wait=True)
    written = await docs.put("d", 2)  # its event may not be out yet: that is no end
    async with asyncio.timeout(60):
        assert await anext(docs.feed("d", after=written.revision)) == 2
        assert [await anext(docs.feed("d", after=1))][0].revision == 2  # type: ignore[union-attr]
    for path, after, newest in (("d", 3, 2), ("d", 10**15, 2), ("never", 1, 0), ("c~", 1, 0), ("c~/1", 1, 0)):
        with pytest.raises(DocumentConflict, match="revision") as caught:
            await anext(docs.feed(path, after=after))
        assert (caught.value.code, caught.value.facts) == ("feed-beyond-end", {"newest": newest, "after": after})
        for query, headers in ((f"feed&after={after}", {}), ("feed", {"Last-Event-ID": str(after)})):
            for method in ("GET", "HEAD"):
                answer = await http.request(method, f"{C}{path}?{query}", headers=headers)
                assert answer.status_code == 409, (method, path, query, answer.text)
    items = docs.feed("d", after=2)
    assert await anext(items) == 2
    await document_journal(log.parts).purge("d")
    with pytest.raises(DocumentConflict) as caught:
        await no_event(items)
    assert (caught.value.code, caught.value.facts["newest"]) == ("feed-beyond-end", 0)
    with pytest.raises(DocumentConflict):
        await anext(docs.feed("d", after=2))


ids = st.sampled_from("abcdef")
changes = st.lists(
    st.tuples(ids, st.sampled_from(["feed:put", "feed:patch", "feed:delete"]), st.sampled_from([1, 2, None])),
    max_size=20,
)


@given(changes, st.integers(1, 4), st.integers(1, 40))
def test_pages_from_the_newest_change_are_what_folding_from_the_oldest_gives(events, size, max_bytes):
    wanted: dict[str, Any] = {}
    for item, method, value in events:
        if method == "feed:put":
            wanted[item] = without_nulls({"id": item, "v": value})
        elif method == "feed:patch":
            wanted[item] = without_nulls(merge(wanted.get(item), {"v": value}))
        else:
            wanted.pop(item, None)
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        past = ElementsPast(after, size, max_bytes)
        for item, method, value in reversed(events):
            body = without_nulls({"id": item, "v": value}) if method == "feed:put" else {"v": value}
            past.take(item, method, body, 10)
        page, after = past.page()
        assert len(page) <= size
        assert page or after is None
        found += page
    assert found == [wanted[item] for item in sorted(wanted)]
