"""The same API over HTTP and without `await`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import everlog
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import DocumentsConfig
from everlog.console.server import serving
from everlog.core.values import Position
from everlog.documents.api import Documents
from everlog.documents.history import DocumentEvent
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.documents.live_change import LiveChange
from everlog.errors import (
    DocumentConflict,
    DocumentNotFound,
    FilterTooExpensive,
    InvalidDocument,
    InvalidPosition,
    MessageReused,
    PreconditionFailed,
    QueryLimited,
    StorageFailed,
    Unreachable,
    WriteUnfinished,
)
from tests.support import small_config


@pytest.fixture(params=["embedded", "http"])
async def log(request, tmp_path) -> AsyncIterator[Everlog]:
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=DocumentsConfig(max_live_elements=4))
    async with connect(config) as local:
        if request.param == "embedded":
            yield local
            return
        async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
            yield remote


@pytest.fixture
def docs(log: Everlog) -> Documents:
    return log.documents


async def ready(docs: Documents, path: str, index_id: str, status: IndexStatus = IndexStatus.READY) -> None:
    async with asyncio.timeout(60):
        while (await docs.index(path, index_id)).status is not status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_writes_and_reads(docs: Documents) -> None:
    written = await docs.put("a/b's", {"n": 1.5, "s": "ü"})
    assert (written.path, written.revision, written.created) == ("a/b's", 1, True)
    assert (await docs.patch("a/b's", {"s": None})).revision == 2
    found = await docs.get("a/b's")
    assert (found.body, found.revision, found.etag) == ({"n": 1.5}, 2, '"2"')
    posted = await docs.post("c~", {"x": 1}, message_id="m")
    again = await docs.post("c~", {"x": 1}, message_id="m")
    assert (posted.path, posted.transaction_id) == (again.path, again.transaction_id)
    await docs.put("empty~")
    assert (await docs.list("empty~")).elements == []
    await docs.delete("c~")
    assert not (await docs.put("a/b's", 1, wait=True)).created


async def test_a_write_that_waits_knows_the_place_of_its_event(log: Everlog, docs: Documents) -> None:
    """It is the place that the event has in the journal. A repetition gets the same; who does not wait gets none."""
    written = [
        await docs.put("c~/x", {"n": 1}, wait=True),
        await docs.post("c~", {"n": 2}, message_id="m", wait=True),
        await docs.patch("c~/x", {"n": 3}, wait=True),
        await docs.delete("c~/x", wait=True),
    ]
    again = await docs.post("c~", {"n": 2}, message_id="m", wait=True)
    assert (again.transaction_id, again.position) == (written[1].transaction_id, written[1].position)
    places = [one.position for one in written]
    stored = log.journal("documents").read("c~", after=places[-1])
    assert [Position("documents", one.partition, one.offset) async for one in stored] == places
    assert [event.position async for event in docs.history("c~")] == places
    assert [(await docs.transaction(one.transaction_id)).position for one in written] == places
    quick = await docs.put("c~/y", {})
    assert quick.position is None
    await docs.settle("c~")
    later = (await docs.transaction(quick.transaction_id)).position
    assert later is not None
    assert places[-1] is not None
    assert later.offset > places[-1].offset


async def test_places_grow_with_the_revisions(docs: Documents) -> None:
    """Whoever writes at the same time."""
    written = await asyncio.gather(*[docs.put("d", n, wait=True) for n in range(20)])
    ordered = sorted(written, key=lambda one: one.revision)
    assert [one.revision for one in ordered] == list(range(1, 21))
    offsets = [one.position.offset for one in ordered if one.position is not None]
    assert len(offsets) == 20
    assert offsets == sorted(set(offsets))


async def test_every_read_takes_a_position(docs: Documents) -> None:
    """One of this topic, that the log has reached; others are refused, so none is ignored."""
    first = await docs.put("c~/x", {"n": 1}, wait=True)
    last = await docs.put("c~/x", {"n": 2}, wait=True)
    assert last.position is not None
    now = datetime.now(UTC)

    def reads(token: Position | str | None) -> list[Any]:
        async def history() -> list[int]:
            return [event.revision async for event in docs.history("c~", token=token)]

        return [
            docs.get("c~/x", token=token),
            docs.list("c~", filter="n > 0", token=token),
            history(),
            docs.at("c~/x", 2, token=token),
            docs.revision_at("c~/x", now, token=token),
            docs.diff("c~/x", 1, 2, token=token),
        ]

    for token in (None, first.position, last.position, str(last.position)):
        found, page, events, body, revision, patch = [await one for one in reads(token)]
        assert (found.body["n"], page.elements[0]["n"], events) == (2, 2, [1, 2])
        assert (body["n"], revision, patch) == (2, 2, {"n": 2})
    _, partition, offset = last.position
    for token in ("orders:0:0", "nonsense", str(Position("documents", partition, offset + 1000))):
        for read in reads(token):
            with pytest.raises(InvalidPosition):
                await read


async def test_refusals_are_the_same(docs: Documents) -> None:
    await docs.put("d", "text")
    await docs.put("c~/x", {})
    for kind, call in [
        (DocumentNotFound, docs.get("nope")),
        (DocumentNotFound, docs.list("nope~")),
        (DocumentNotFound, docs.delete("nope")),
        (DocumentNotFound, docs.index("c~", "nope")),
        (InvalidDocument, docs.put("a//b", 1)),
        (InvalidDocument, docs.patch("d", {})),
        (InvalidDocument, docs.list("c~", filter="b >")),
        (InvalidDocument, docs.list("d")),
        (InvalidDocument, docs.get("c~")),
        (DocumentConflict, docs.put("c~", {"a": 1})),
        (PreconditionFailed, docs.put("d", 1, if_none_match="*")),
        (QueryLimited, docs.list("c~", sort="a", size=1, max_skip=0)),
    ]:
        with pytest.raises(kind) as caught:
            await call
        assert caught.value.code
    await docs.put("d", 1, message_id="m")
    with pytest.raises(MessageReused):
        await docs.put("d", 2, message_id="m")


async def test_queries_indexes_and_pages(docs: Documents) -> None:
    for number in range(5):
        await docs.put(f"c~/{number}", {"n": number, "even": number % 2 == 0})
    made = await docs.create_index("c~", IndexNew("i", (IndexSortItem("n", order="desc"),), "even"))
    assert made.index_id == "i"
    await ready(docs, "c~", "i")
    page = await docs.list("c~", filter="even", sort="-n", size=2, explain=True)
    assert [one["id"] for one in page.elements] == ["4", "2"]
    assert page.explanation is not None
    assert (page.explanation.index, page.count) == ("i", 3)
    assert page.next is not None
    rest = await docs.list("c~", filter="even", sort="-n", size=2, **page.next)
    assert [one["id"] for one in rest.elements] == ["0"]
    assert [one.index_id for one in await docs.indexes("c~")] == ["i"]
    await docs.delete_index("c~", "i")
    assert await docs.indexes("c~") == []
    with pytest.raises(DocumentNotFound):
        await docs.delete_index("c~", "i")


async def test_a_filter_that_is_too_expensive_is_refused_by_name(docs: Documents) -> None:
    """The same error here and over HTTP; an index is given up with the reason."""
    await docs.put("c~/1", {"a": ["x" * 100] * 5000})
    text = 's"' + "${a}" * 90 + '" = "x"'
    with pytest.raises(FilterTooExpensive) as caught:
        await docs.list("c~", filter=text)
    assert caught.value.code == "filter-too-expensive"
    await docs.create_index("c~", IndexNew("i", (), text))
    await ready(docs, "c~", "i", IndexStatus.FAILED)
    assert "[documents] max_element_" in ((await docs.index("c~", "i")).reason or "")
    assert (await docs.put("c~/2", {"a": 1}, wait=True)).revision == 2


async def test_counts(docs: Documents) -> None:
    """Exact at once after a write, through an index or not; `explain` says which; bounded as a page is."""
    for number in range(30):
        await docs.put(f"c~/{number}", {"n": number, "odd": number % 2 == 1})
    assert (await docs.count("c~")).count == 30
    found = await docs.count("c~", filter="n > 9 and odd", explain=True)
    assert (found.count, found.revision) == (10, 30)
    assert found.explanation is not None
    assert (found.explanation.index, found.explanation.rows_read) == (None, 30)
    await docs.create_index("c~", IndexNew("by-n", (IndexSortItem("n", "decimal", "desc"),)))
    await ready(docs, "c~", "by-n")
    await docs.settle("c~")
    found = await docs.count("c~", filter="n > 9 and odd", explain=True)
    assert found.explanation is not None
    assert (found.count, found.explanation.index, found.explanation.rows_read) == (10, "by-n", 20)
    for number in range(10, 20):
        await docs.delete(f"c~/{number}")
        assert (await docs.count("c~", filter="n > 9")).count == 29 - number
    assert (await docs.count("c~")).count == 20
    for bad, error in (("missing~", DocumentNotFound), ("c~/1", InvalidDocument), ("d", InvalidDocument)):
        with pytest.raises(error):
            await docs.count(bad)
    with pytest.raises(InvalidDocument, match="cannot be read"):
        await docs.count("c~", filter="n >")
    await docs.put("c~/long", {"n": ["x" * 100] * 3000})
    with pytest.raises(FilterTooExpensive):
        await docs.count("c~", filter='s"' + "${n}" * 90 + '" = "x"')


async def test_the_past_and_the_feed(docs: Documents) -> None:
    await docs.put("d", {"a": 1})
    written = await docs.patch("d", {"a": 2}, correlation_id="corr")
    events = [event async for event in docs.history("d")]
    assert [(event.revision, event.body) for event in events] == [(1, {"a": 1}), (2, {"a": 2})]
    assert events[1].correlation_id == "corr"
    assert [event.revision async for event in docs.history("d", reverse=True, limit=1)] == [2]
    assert await docs.at("d", 1) == {"a": 1}
    assert await docs.diff("d", 1, 2) == {"a": 2}
    assert await docs.revision_at("d", datetime(2999, 1, 1, tzinfo=UTC)) == 2
    await docs.settle("d")
    assert await docs.pending("d") == []
    assert (await docs.transaction(written.transaction_id)).revision == 2
    await docs.put("c~/x", {"n": 1}, wait=True)
    assert await docs.at("c~", 1) == [{"n": 1, "id": "x"}]
    seen: list[Any] = []
    async with asyncio.timeout(60):
        async for item in docs.feed("d", after=0):
            seen.append(item.revision if isinstance(item, DocumentEvent) else f"checkpoint {item}")
            if len(seen) == 3:
                break
    assert seen == [1, 2, "checkpoint 2"]
    with pytest.raises(InvalidDocument):
        await anext(docs.feed("a//b"))


async def step(changes: AsyncGenerator[LiveChange, None]) -> LiveChange:
    """The next one that is no checkpoint."""
    while True:
        change = await anext(changes)
        if change.kind != "checkpoint":
            return change


async def test_a_live_query_and_where_it_goes_on(docs: Documents) -> None:
    for item in "ab":
        await docs.put(f"live~/{item}", {"n": 1.5})
    async with asyncio.timeout(60), contextlib.aclosing(docs.live("live~", filter='id > "a"')) as changes:
        present = [await anext(changes) for _ in range(3)]
        await docs.put("live~/c", {"n": 2})
        await docs.delete("live~/b")
        later = [await step(changes) for _ in range(2)]
    assert [(one.kind, one.id) for one in present] == [("reset", ""), ("present", "b"), ("complete", "")]
    assert (present[1].body, present[1].position, present[2].revision) == ({"n": 1.5, "id": "b"}, None, 2)
    assert [(one.kind, one.id, one.revision) for one in later] == [("entered", "c", 3), ("left", "b", 4)]
    async with contextlib.aclosing(docs.live("live~", filter="id>'a'", after=later[0].position)) as changes:
        assert await step(changes) == later[1]
    for options, error, code in (
        ({"after": later[0].position}, InvalidDocument, "position-of-another-query"),
        ({"filter": "id >"}, InvalidDocument, "invalid-filter"),
        ({"filter": 'id > "a"', "after": f"7{str(later[0].position)[1:]}"}, DocumentConflict, "position-beyond-end"),
    ):
        assert isinstance(options, dict)
        with pytest.raises(error) as caught:
            await anext(docs.live("live~", **options))
        assert caught.value.code == code
    with pytest.raises(InvalidDocument):
        await anext(docs.live("live"))


async def test_a_live_query_that_fails_says_why(docs: Documents, log: Everlog) -> None:
    """Also when the stream has begun: the same error, and it is not tried again."""
    for item in range(5):
        await docs.put(f"live~/{item}", {})
    with pytest.raises(QueryLimited) as caught:
        async for _ in docs.live("live~"):
            pass
    assert caught.value.code == "live-too-large"


async def test_views_and_template_indexes(docs: Documents) -> None:
    assert (await docs.put_view("v~", "p/{*}", "n > 1")).template == "p/{*}"
    assert (await docs.view("v~")).filter == "n > 1"
    made = await docs.put_template_index("t", "q/{*}~", IndexNew(sort_by=(IndexSortItem("n"),)))
    assert (made.index_id, (await docs.template_index("t")).template) == ("t", "q/{*}~")
    await docs.delete_template_index("t")
    await docs.put("p/1", {"n": 5}, wait=True)
    assert [one.uri for one in await docs.views()] == ["v~"]
    await docs.delete_view("v~")
    for call in (docs.view("v~"), docs.template_index("t")):
        with pytest.raises(DocumentNotFound):
            await call


async def test_what_a_view_cannot_show(docs: Documents) -> None:
    await docs.put_view("v~", "{one}/{two}")
    for name in ("a", "b", "c"):
        await docs.put(f"{name}:{name}/d", {"n": 1}, wait=True)
    view = await docs.view("v~")
    assert view.unshown == 3
    first, second = await docs.unshown("v~", limit=2)
    assert (first.view, first.source, first.code) == ("v~", "a:a/d", "ambiguous-id")
    assert "':'" in first.reason
    assert first.since_ms
    assert [one.source for one in await docs.unshown("v~", after=second.source)] == ["c:c/d"]
    again = await docs.retry_unshown("v~", source="b:b/d")
    assert (again.shown, again.left, again.next) == (0, 1, None)
    assert (await docs.unshown("v~"))[1].attempts == second.attempts + 1
    await docs.delete("b:b/d", wait=True)
    again = await docs.retry_unshown("v~", limit=1)
    assert (again.shown, again.left, again.next) == (0, 1, "a:a/d")
    with pytest.raises(DocumentNotFound):
        await docs.retry_unshown("v~", source="b:b/d")
    with pytest.raises(DocumentNotFound):
        await docs.unshown("w~")
    with pytest.raises(InvalidDocument):
        await docs.unshown("v~", limit=0)


async def test_a_list_of_collections(docs: Documents) -> None:
    for path in ("shop/käse & brot~/1", "shop/käse & brot~/2", "shop/a~/1", "tea~/1", "shop/settings"):
        await docs.put(path, {"n": 1})
    await docs.put_view("views~", "tea~/{*}")
    await docs.create_index("tea~", IndexNew("i"))
    page = await docs.collections()
    assert [(one.path, one.revision, one.count) for one in page.collections][:3] == [
        ("shop/a~", 1, 1), ("shop/käse & brot~", 2, 2), ("tea~", 1, 1)
    ]  # fmt: skip
    assert [(one.view, one.indexes) for one in page.collections[2:]] == [(False, 1), (True, 0)]
    found, after = [], ""
    while True:
        part = await docs.collections("shop/", after=after, size=1)
        found += [one.path for one in part.collections]
        if part.next is None:
            break
        after = part.next
    assert found == ["shop/a~", "shop/käse & brot~"]
    for wrong in ({"size": 0}, {"size": 1001}, {"prefix": "a\n"}, {"prefix": "\ud800"}, {"after": "x" * 1025}):
        with pytest.raises(InvalidDocument):
            await docs.collections(**wrong)


async def test_a_server_that_is_not_there() -> None:
    async with connect("http://127.0.0.1:9") as log:
        with pytest.raises(Unreachable):
            await log.documents.get("d")
        with pytest.raises(WriteUnfinished) as caught:
            await log.documents.put("d", 1)
        assert caught.value.message_id == ""
        with pytest.raises(WriteUnfinished) as caught:
            await log.documents.put("d", 1, message_id="m")
        assert caught.value.message_id == "m"
        with pytest.raises(Unreachable):
            await log.journal("orders").pointer("o-1")
        with pytest.raises(StorageFailed):
            _ = log.parts


def test_without_await(tmp_path) -> None:
    with everlog.sync.connect(tmp_path / "data") as log:
        docs = log.documents
        docs.put("d", {"a": 1})
        docs.patch("d", {"b": 2}, wait=True)
        assert docs.get("d").body == {"a": 1, "b": 2}
        assert [event.revision for event in docs.history("d")] == [1, 2]
        docs.put("c~/x", {"n": 1})
        assert docs.list("c~", filter="n = 1").elements == [{"n": 1, "id": "x"}]
        with pytest.raises(DocumentNotFound):
            docs.get("nope")
