"""Views: what cannot be shown is set aside, deletions are followed, and writes of the source go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from everlog.client import connect
from everlog.documents import view_copies, views
from everlog.documents.api import Documents
from everlog.documents.evaluator import Evaluator
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentView, TemplateIndex
from everlog.documents.templates import ids_from, item_of, source_of
from everlog.documents.unshown import UnshownElement
from everlog.errors import Busy, DocumentConflict, DocumentNotFound, InvalidDocument
from tests.documents.test_documents import config_of, forget_retries, idle, ids

LONG = "k" * 200


@pytest.fixture
async def docs(tmp_path, clock) -> AsyncIterator[Documents]:
    async with connect(config_of(tmp_path / "data"), clock=clock) as log:
        yield log.documents


async def settle(docs: Documents, *paths: str) -> None:
    for path in paths:
        await docs.settle(path)
    await docs.build_indexes()


async def fails_for(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The filter of every view raises for elements with `bad`."""

    async def match(self: Evaluator, condition: str | None, element: Any, now_ms: int) -> bool:
        if "bad" in element:
            raise error
        return True

    monkeypatch.setattr(Evaluator, "matches", match)


async def shown(docs: Documents, view: str) -> list[str]:
    try:
        return ids(await docs.list(view, size=1000))
    except DocumentNotFound:
        return []


async def test_what_a_view_cannot_show_is_set_aside_and_writes_go_on(docs: Documents, monkeypatch) -> None:
    """600 writes of the source, more than may wait, behind an element that the view's filter cannot judge."""
    await fails_for(monkeypatch, ValueError("a defect"))
    await docs.put_view("v~", "c~/{*}", "n >= 0")
    await docs.put("c~/1", {"bad": True}, wait=True)
    for number in range(600):
        await docs.put(f"c~/{2 + number % 3}", {"n": number})
    await settle(docs, "c~")
    assert await docs.pending("c~") == []
    assert await shown(docs, "v~") == ["2", "3", "4"]
    assert (await docs.view("v~")).unshown == 1
    (aside,) = await docs.unshown("v~")
    assert (aside.source, aside.code, aside.reason, aside.revision) == ("c~/1", "ValueError", "a defect", 1)


async def test_too_large_and_too_long(docs: Documents) -> None:
    """The copy has a longer id than its source; the values of two parameters make an id that is too long."""
    await docs.put_view("large~", "d/{*}")
    await docs.put_view("long~", "{one}/{two}")
    body = {"x": "y" * (1024 * 1024 - len('{"x":""}'))}
    await docs.put("d/1", body, wait=True)
    await docs.put(f"{LONG}/{LONG}", {"n": 1}, wait=True)
    await docs.put("a:b/c", {"n": 1}, wait=True)
    await docs.put("a/b:c", {"n": 1}, wait=True)
    await settle(docs, "d/1", "a:b/c", "a/b:c", f"{LONG}/{LONG}")
    assert [(one.source, one.code) for one in await docs.unshown("large~")] == [("d/1", "body-too-large")]
    assert [(one.source, one.code) for one in await docs.unshown("long~")] == [
        ("a:b/c", "ambiguous-id"),
        ("d/1", "body-too-large"),
        (f"{LONG}/{LONG}", "invalid-path"),
    ]
    assert await shown(docs, "long~") == ["a:b:c"]
    await docs.put("d/1", {"n": 2}, wait=True)
    await docs.delete(f"{LONG}/{LONG}", wait=True)
    assert await docs.unshown("large~") == []
    assert [one.source for one in await docs.unshown("long~")] == ["a:b/c"]
    assert (await docs.get("large~/1")).body == {"n": 2, "id": "1"}


async def test_what_is_set_aside_is_tried_again(docs: Documents, monkeypatch) -> None:
    await docs.put_view("v~", "c~/{*}")
    with monkeypatch.context() as patch:
        await fails_for(patch, InvalidDocument("filter-limited", "over budget"))
        for number in range(5):
            await docs.put(f"c~/{number}", {"bad": number})
        await settle(docs, "c~")
        assert (await docs.view("v~")).unshown == 5
        page = await docs.unshown("v~", limit=2)
        assert [one.source for one in page] == ["c~/0", "c~/1"]
        assert [one.source for one in await docs.unshown("v~", after=page[-1].source)] == ["c~/2", "c~/3", "c~/4"]
        before = {one.source: one.attempts for one in await docs.unshown("v~")}  # the first fill tries, too
        again = await docs.retry_unshown("v~", source="c~/1")
        assert (again.shown, again.left) == (0, 1)
        after = {one.source: one.attempts for one in await docs.unshown("v~")}
        assert after == {**before, "c~/1": before["c~/1"] + 1}
        await docs.delete("c~/4", wait=True)
        await docs.put("c~/3", {"fine": 3}, wait=True)
        assert [one.source for one in await docs.unshown("v~")] == ["c~/0", "c~/1", "c~/2"]
    assert (await docs.retry_unshown("v~", source="c~/1")).shown == 1
    retried = await docs.retry_unshown("v~", limit=1)
    assert (retried.shown, retried.left, retried.next) == (1, 0, "c~/0")
    assert (await docs.retry_unshown("v~")).shown == 1
    assert await shown(docs, "v~") == ["0", "1", "2", "3"]
    assert (await docs.view("v~")).unshown == 0
    with pytest.raises(DocumentNotFound):
        await docs.retry_unshown("v~", source="c~/1")
    for limit in (0, 1001):
        with pytest.raises(InvalidDocument):
            await docs.unshown("v~", limit=limit)


async def test_a_store_that_does_not_answer_is_waited_for(docs: Documents, monkeypatch) -> None:
    await docs.put_view("v~", "c~/{*}")
    with monkeypatch.context() as patch:
        await fails_for(patch, Busy("locked"))
        await docs.put("c~/1", {"bad": 1})
        with pytest.raises(Busy):
            await docs.settle("c~")
        assert await docs.unshown("v~") == []
    await settle(docs, "c~")
    assert await shown(docs, "v~") == ["1"]


async def test_an_element_that_fails_stays_as_it_was_shown(docs: Documents, monkeypatch) -> None:
    await docs.put_view("v~", "c~/{*}")
    await docs.put("c~/1", {"n": 1}, wait=True)
    await fails_for(monkeypatch, ValueError("a defect"))
    await docs.put("c~/1", {"bad": 2}, wait=True)
    assert (await docs.get("v~/1")).body == {"n": 1, "id": "1"}
    assert len(await docs.unshown("v~")) == 1
    await docs.delete("c~", wait=True)
    assert await docs.unshown("v~") == []
    assert await shown(docs, "v~") == []


async def test_of_two_tasks_the_newer_revision_counts(docs: Documents, monkeypatch) -> None:
    """One task could not show revision 1 and is slow to say so; meanwhile revision 2 was shown."""
    await docs.put_view("v~", "d/{*}")
    await docs.settle("d/1")
    parts = await docs.open()
    view, copies = await docs.view("v~"), parts.followers.copies
    await fails_for(monkeypatch, ValueError("a defect"))
    put = type(copies.unshown).put
    done = False

    async def slow(self: Any, element: UnshownElement, before: UnshownElement | None) -> bool:
        nonlocal done
        if not done:
            done = True
            await docs.put("d/1", {"n": 2})
            await copies.show(view, DocumentPlace("d/1"))
        return await put(self, element, before)

    monkeypatch.setattr(type(copies.unshown), "put", slow)
    await docs.put("d/1", {"bad": 1})
    await copies.show(view, DocumentPlace("d/1"))
    assert done
    assert await docs.unshown("v~") == []
    assert (await docs.get("v~/1")).body == {"n": 2, "id": "1"}


@pytest.mark.parametrize("count", [3, 250])
async def test_views_follow_the_deletion_of_a_collection(docs: Documents, count: int) -> None:
    """Also of many elements, and when it is made again at once; other collections stay."""
    await docs.put_view("all~", "{shop}/orders~/{id}")
    await docs.put_view("north~", "north/orders~/{id}", "n >= 0")
    for number in range(count):
        await docs.put(f"north/orders~/{number}", {"n": number})
        if number % 100 == 99:
            await docs.settle("north/orders~")
    await docs.put("south/orders~/1", {"n": 1})
    await settle(docs, "north/orders~", "south/orders~")
    assert len(await shown(docs, "all~")) == count + 1
    await docs.delete("north/orders~")
    await docs.put("north/orders~/2", {"n": -1})
    await docs.put("north/orders~/new", {"n": 5})
    await settle(docs, "north/orders~", "all~", "north~")
    assert await shown(docs, "all~") == ["north:2", "north:new", "south:1"]
    assert (await docs.get("all~/north:2")).body == {"n": -1, "id": "north:2"}
    assert await shown(docs, "north~") == ["new"]
    assert [(await docs.view(name)).status for name in ("all~", "north~")] == ["ready", "ready"]
    await docs.delete("south/orders~", wait=True)
    await settle(docs, "south/orders~")
    assert await shown(docs, "all~") == ["north:2", "north:new"]


async def test_more_than_fits_is_shown_again_when_there_is_room(docs: Documents, monkeypatch) -> None:
    for module in (view_copies, views):
        monkeypatch.setattr(module, "MAX_UNSHOWN", 3)
    await docs.put_view("v~", "c~/{*}")
    await settle(docs, "c~")
    with monkeypatch.context() as patch:
        await fails_for(patch, ValueError("a defect"))
        for number in range(6):
            await docs.put(f"c~/{number}", {"bad": number})
        await settle(docs, "c~")
        await docs.build_indexes()
        view = await docs.view("v~")
        assert (view.unshown, view.filled) == (3, False)
    await docs.retry_unshown("v~")
    await docs.build_indexes()
    assert await shown(docs, "v~") == [str(number) for number in range(6)]
    assert (await docs.view("v~")).status == "ready"


async def test_a_deleted_view_stays_deleted(docs: Documents) -> None:
    """A server that still holds the old definition neither makes it again nor keeps what it set aside."""
    await docs.put_view("v~", "d/{*}")
    await docs.put("d/1", {"n": 1}, wait=True)
    copies = (await docs.open()).followers.copies
    view = await docs.view("v~")
    await docs.delete_view("v~")
    await docs.put("d/2", {"n": 1}, wait=True)
    await copies.show(view, DocumentPlace("d/2"))
    with pytest.raises(DocumentNotFound):
        await docs.list("v~")
    await copies.show(DocumentView("v~", "{a}/{b}", None), DocumentPlace(f"{LONG}/{LONG}"))
    assert await copies.unshown.count("v~") == 0
    await docs.put("v~/own", {"n": 1})
    assert await shown(docs, "v~") == ["own"]


async def test_definitions_that_mean_nothing_hold_nothing_up(docs: Documents) -> None:
    """As if another version had stored them."""
    parts = await docs.open()
    await parts.store.put_view(DocumentView("v~", "no template", None))
    await parts.store.put_view(DocumentView("w~", "c~/{*}", "((("))
    await parts.store.put_template_index(TemplateIndex("t", "{*}~", '{"sortBy": 1}'))
    await parts.store.put_template_index(TemplateIndex("u", "}{", "{}"))
    parts.followers.forget()
    await docs.put_view("x~", "c~/{*}")
    await docs.put("c~/1", {"n": 1}, wait=True)
    await docs.build_indexes()
    assert await docs.pending("c~") == []
    assert [one.code for one in await docs.unshown("w~")] == ["invalid-filter"]
    (index,) = await docs.indexes("c~")
    assert (index.index_id, index.status) == ("t", IndexStatus.FAILED)
    assert index.reason
    assert await shown(docs, "x~") == ["1"]


async def test_a_template_that_matches_its_own_view(docs: Documents) -> None:
    await docs.put_view("a~", "{c}~/{*}")
    await docs.put_view("b~", "{c}/{*}")
    await docs.put("c~/1", {"n": 1}, wait=True)
    await settle(docs, "c~", "a~", "b~", "a~")
    assert await shown(docs, "a~") == ["c:1"]
    assert await shown(docs, "b~") == ["c~:1"]


async def test_there_is_a_limit_on_everything(docs: Documents, monkeypatch) -> None:
    monkeypatch.setattr("everlog.documents.documents.MAX_VIEWS", 2)
    monkeypatch.setattr("everlog.documents.documents.MAX_TEMPLATE_INDEXES", 2)
    monkeypatch.setattr("everlog.documents.documents.MAX_INDEXES", 2)
    for number in range(2):
        await docs.put_view(f"v{number}~", "c/{*}")
        await docs.put_template_index(f"t{number}", "c/{*}~", IndexNew())
        await docs.create_index("c~", IndexNew(f"i{number}", (IndexSortItem("a"),)))
    for call in (
        docs.put_view("v3~", "c/{*}"),
        docs.put_template_index("t3", "c/{*}~", IndexNew()),
        docs.create_index("c~", IndexNew("i3")),
    ):
        with pytest.raises(DocumentConflict, match="delete one first"):
            await call
    await docs.put_view("v1~", "c/{*}")  # as it is
    await docs.put_template_index("t1", "c/{*}~", IndexNew())
    with pytest.raises(InvalidDocument, match="16 parameters"):
        await docs.put_view("v3~", "x".join("{*}" for _ in range(17)))


def test_a_hostile_template_takes_no_time() -> None:
    """A pattern that goes back would look at every way to divide the text."""
    template = "a".join("{*}" for _ in range(16)) + "b"
    assert item_of(template, "a" * 1000) is None


@pytest.mark.parametrize(
    ("template", "path", "item"),
    [
        ("abc/{*}", "abc/123", "123"),
        ("{shop}/orders~/{id}", "north/orders~/7", "north:7"),
        ("{shop}/orders~/{id}", "north/orders~/7:8", "north:7:8"),
        ("{a}-{b}/c", "x-y-z/c", "x-y:z"),
        ("c~/{a}.{b}", "c~/1.2.3", "1.2:3"),
        ("{x}/fixed", "doc/fixed", "doc"),
        ("{shop}~/fixed", "north~/fixed", "north"),
    ],
)
def test_an_element_of_a_view_has_one_source(template: str, path: str, item: str) -> None:
    assert item_of(template, path) == item
    source = source_of(template, item)
    assert source is not None
    assert source.path == path
    if source.item:
        low, high = ids_from(template, source.uri) or ("", "")
        assert low <= item
        assert high is None or item < high


@pytest.mark.parametrize(
    ("template", "item"), [("a/{x}/{y}", "1"), ("a~/{x}", "1/2"), ("{a}/{b}", "x:"), ("a/{*}", "b/c")]
)
def test_what_is_no_element_of_a_view(template: str, item: str) -> None:
    assert source_of(template, item) is None


def test_collections_that_a_view_does_not_show() -> None:
    assert ids_from("c~/{*}", "d~") is None
    assert ids_from("{a}/c~/{*}", "x/d~") is None
    assert ids_from("{a}", "d~") is None


async def test_a_crash_of_a_copy_is_put_right_by_a_retry(docs: Documents, monkeypatch) -> None:
    """The completer ends anywhere in the copies of a batch; the next run does them again."""
    await docs.put_view("v~", "c~/{*}")
    copies = (await docs.open()).followers.copies
    show, left = copies.show, 3

    async def cut_off(view: DocumentView, source: DocumentPlace) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise Busy("the process ends here")
        return await show(view, source)

    with monkeypatch.context() as patch:
        patch.setattr(copies, "show", cut_off)
        for number in range(5):
            await docs.put(f"c~/{number}", {"n": number})
        await docs.delete("c~")
        await docs.put("c~/new", {"n": 1})
        with pytest.raises(Busy):
            await docs.settle("c~")
        await idle(docs)
        await forget_retries(docs)
    await settle(docs, "c~")
    assert await shown(docs, "v~") == ["new"]


async def test_a_filter_over_budget_sets_the_element_aside(tmp_path, clock) -> None:
    async with connect(config_of(tmp_path / "data", max_element_steps=2000), clock=clock) as log:
        docs = log.documents
        await docs.put_view("v~", "c~/{*}", "a has b")
        await docs.put("c~/1", {"a": list(range(5000)), "b": [4999]}, wait=True)
        await docs.put("c~/2", {"a": [1], "b": [1]}, wait=True)
        assert [(one.source, one.code) for one in await docs.unshown("v~")] == [("c~/1", "filter-too-expensive")]
        assert await shown(docs, "v~") == ["2"]
