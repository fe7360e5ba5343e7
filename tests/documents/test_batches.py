"""Atomic batches of one document or collection, embedded and over HTTP."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog import sync
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import DocumentsConfig
from everlog.console.server import serving
from everlog.documents.api import Documents
from everlog.documents.batch import DocumentOperation, batch_request, decide_batch, operations_of
from everlog.documents.indexes import IndexNew, IndexSortItem
from everlog.documents.model import DocumentChange, WriteSettings, accept_all
from everlog.errors import (
    DocumentConflict,
    DocumentNotFound,
    EverlogError,
    InvalidDocument,
    MessageReused,
    PreconditionFailed,
    TooManyMessages,
    TooManyPending,
)
from tests.documents.test_model import NOW, World
from tests.support import small_config

HTTP = "/hyper-storage/batches/"


@pytest.fixture(params=["embedded", "http"])
async def log(request, tmp_path) -> AsyncIterator[Everlog]:
    documents = DocumentsConfig(max_operations=20, max_batch_bytes=3000, max_messages=5)
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=documents)
    async with connect(config) as local:
        if request.param == "embedded":
            yield local
            return
        async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
            yield remote


@pytest.fixture
def docs(log: Everlog) -> Documents:
    return log.documents


async def history(docs: Documents, path: str) -> list[tuple[str, str, int]]:
    return [(event.method, event.path, event.revision) async for event in docs.history(path)]


async def test_all_are_done_in_order(docs: Documents) -> None:
    """Each with its revision, its event and its answer; the views, the indexes and the feed follow."""
    await docs.create_index("c~", IndexNew("by-n", (IndexSortItem("n"),)))
    written = await docs.batch(
        "c~",
        [
            {"method": "put", "id": "a", "body": {"n": 2}, "if_none_match": "*"},
            DocumentOperation("put", "b", {"n": 1}),
            {"method": "patch", "id": "a", "body": {"x": "ü"}, "ifMatch": '"1"'},
            {"method": "post", "body": {"n": 3}},
            {"method": "delete", "id": "b"},
        ],
        correlation_id="together",
        wait=True,
    )
    posted = written[3].path
    assert [(one.path, one.revision, one.created, one.repeated) for one in written] == [
        ("c~/a", 1, True, False),
        ("c~/b", 2, True, False),
        ("c~/a", 3, False, False),
        (posted, 4, True, False),
        ("c~/b", 5, False, False),
    ]
    assert await history(docs, "c~") == [
        ("feed:put", "c~/a", 1),
        ("feed:put", "c~/b", 2),
        ("feed:patch", "c~/a", 3),
        ("feed:put", posted, 4),
        ("feed:delete", "c~/b", 5),
    ]
    assert {event.correlation_id async for event in docs.history("c~")} == {"together"}
    page = await docs.list("c~", sort="n")
    assert (page.elements[0], len(page.elements), page.revision) == ({"n": 2, "x": "ü", "id": "a"}, 2, 5)
    assert (await docs.transaction(written[-1].transaction_id)).position == written[-1].position
    assert [one.revision for one in await docs.batch("d", [{"method": "put", "body": 1}, {"method": "delete"}])] == [
        1,
        2,
    ]


REFUSED: tuple[tuple[dict[str, Any], type[EverlogError], str], ...] = (
    ({"method": "patch", "id": "absent", "body": {}}, DocumentNotFound, "not_found"),
    ({"method": "put", "id": "x", "body": {}, "if_match": '"9"'}, PreconditionFailed, "not_matched"),
    ({"method": "put", "id": "new", "body": {}, "if_none_match": "*"}, PreconditionFailed, "not_matched"),
    ({"method": "put", "id": "x", "body": "text"}, InvalidDocument, "element-not-object"),
    ({"method": "put", "id": "x", "body": {}, "if_match": "no tag"}, InvalidDocument, "invalid-header"),
    ({"method": "put", "id": "x"}, InvalidDocument, "invalid-batch"),
    ({"method": "put", "id": "x/y", "body": {}}, InvalidDocument, "invalid-path"),
    ({"method": "delete", "id": "x", "body": {}}, InvalidDocument, "invalid-batch"),
    ({"method": "post", "id": "x", "body": {}}, InvalidDocument, "invalid-batch"),
)


async def test_a_refusal_names_the_operation_and_leaves_nothing(docs: Documents) -> None:
    await docs.put("c~/x", {"n": 1})
    first = {"method": "put", "id": "new", "body": {"text": "y" * 900}}
    for operation, kind, code in REFUSED:
        with pytest.raises(kind) as caught:
            await docs.batch("c~", [first, copy.copy(operation), {"method": "delete"}])
        facts = caught.value
        assert (facts.code, facts.facts["operation"]) == (code, 1), operation  # type: ignore[attr-defined]
        assert "operation 1" in str(caught.value)
    with pytest.raises(InvalidDocument) as large:
        await docs.batch("c~", [first, *[{"method": "patch", "id": "new", "body": {}}] * 3])
    assert (large.value.code, large.value.facts["operation"]) == ("batch-too-large", 3)
    for operations, code in (([], "invalid-batch"), ([{"method": "post", "body": {}}] * 21, "invalid-batch")):
        with pytest.raises(InvalidDocument) as wrong:
            await docs.batch("c~", operations)
        assert wrong.value.code == code
    with pytest.raises(InvalidDocument, match="last"):
        await docs.batch("c~", [{"method": "delete"}, {"method": "put", "id": "x", "body": {}}])
    for bad in (7, "text", [7], [{"method": "get"}], [{"method": "put", "body": {}, "odd": 1}]):
        with pytest.raises(InvalidDocument):
            await docs.batch("c~", bad)  # type: ignore[arg-type]
    for path in ("c~/x", "/c~", ""):
        with pytest.raises(EverlogError):
            await docs.batch(path, [{"method": "delete"}])
    with pytest.raises(InvalidDocument):
        await docs.batch("d", [{"method": "post", "body": {}}])
    assert await history(docs, "c~") == [("feed:put", "c~/x", 1)]
    assert (await docs.list("c~")).elements == [{"n": 1, "id": "x"}]


async def test_a_batch_is_repeated_as_a_whole(docs: Documents) -> None:
    operations: list[dict[str, Any]] = [{"method": "post", "body": {"n": n}} for n in range(3)]
    first = await docs.batch("c~", operations, message_id="m")
    again = await docs.batch("c~", operations, message_id="m")
    assert [(one.path, one.revision, one.created) for one in again] == [
        (one.path, one.revision, one.created) for one in first
    ]
    with pytest.raises(MessageReused):
        await docs.batch("c~", operations[:2], message_id="m")
    with pytest.raises(MessageReused):
        await docs.post("c~", {"n": 0}, message_id="m")
    for number in range(4):  # a batch is one message
        await docs.batch("c~", operations, message_id=f"n{number}")
    with pytest.raises(TooManyMessages):
        await docs.batch("c~", operations, message_id="more")
    assert (await docs.list("c~")).count == 15


async def test_writers_are_held_back_before_a_batch_is_too_much(tmp_path) -> None:
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=DocumentsConfig(max_pending=4))
    async with connect(config) as log:
        docs = log.documents
        store = (await docs.open()).store
        with pytest.raises(InvalidDocument, match="1 to 4 operations"):
            await docs.batch("c~", [{"method": "post", "body": {}}] * 5)
        world = World()
        for _ in range(2):  # events that wait: nothing completes them
            made = world.write("post", "c~", {})
            assert isinstance(made, DocumentChange)
            assert await store.accept(made)
        with pytest.raises(TooManyPending) as caught:
            await docs.batch("c~", [{"method": "post", "body": {}}] * 3)
        assert caught.value.facts == {"operation": 2}
        assert len(await docs.batch("c~", [{"method": "post", "body": {}}] * 2)) == 2


async def test_over_http(tmp_path) -> None:
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=DocumentsConfig(max_batch_bytes=3000))
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address) as http,
    ):
        body = [{"method": "put", "id": "a b", "body": {"n": 1.50}}, {"method": "delete", "id": "a"}]
        answer = await http.post(f"{HTTP}shop/c~", json=body, headers={"Hyperbus-Correlation-Id": "mine"})
        assert answer.status_code in (400, 404)
        body[0]["id"] = "a"
        headers = {"Idempotency-Key": "m", "Hyper-Storage-Wait": "full"}
        answer = await http.post(f"{HTTP}shop/c~", json=body, headers=headers)
        assert answer.status_code == 200
        assert [(one["status"], one["path"], one["revision"]) for one in answer.json()["results"]] == [
            (201, "shop/c~/a", 1),
            (200, "shop/c~/a", 2),
        ]
        assert (answer.headers["revision"], answer.headers["hyperbus-message-id"]) == ("2", "m")
        assert [one.get("etag") for one in answer.json()["results"]] == ['"1"', None]
        assert answer.headers["journal-position"].startswith("documents:")
        again = await http.post(f"{HTTP}shop/c~", json=body, headers=headers)
        assert again.content == answer.content
        refused = await http.post(f"{HTTP}shop/c~", json=[*body, {"method": "delete", "id": "a"}])
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert refused.json()["extra"] == {"operation": 2}
        for text in (b"", b"{", b"[{}]", b'{"method":"put"}', b'[{"method":"put","id":"a","body":1e99999}]'):
            assert (await http.post(f"{HTTP}shop/c~", content=text)).status_code == 400
        large = await http.post(f"{HTTP}shop/c~", content=b" " * 4000)
        assert (large.status_code, large.json()["code"]) == (413, "body-too-large")
        assert "max_batch_bytes" in large.json()["description"]


def test_without_await(tmp_path) -> None:
    with sync.connect(tmp_path / "data") as log:
        written = log.documents.batch("c~", [{"method": "put", "id": "x", "body": {}}], wait=True)
        assert [(one.path, one.revision) for one in written] == [("c~/x", 1)]
        assert written[0].position is not None


ids = st.sampled_from("xyz")
operation = st.one_of(
    st.builds(DocumentOperation, st.just("put"), ids, st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))),
    st.builds(DocumentOperation, st.just("patch"), ids, st.dictionaries(st.sampled_from("ab"), st.none())),
    st.builds(DocumentOperation, st.just("delete"), ids),
    st.builds(DocumentOperation, st.just("post"), st.just(""), st.just({})),
)


@given(st.lists(st.lists(operation, min_size=1, max_size=5), max_size=5))
def test_a_batch_is_its_operations_one_after_the_other(batches: list[list[DocumentOperation]]) -> None:
    """The same elements, heads and events as of single writes; if one of those is refused, nothing."""
    together, single = World(), World()
    for operations in batches:
        before = copy.deepcopy(single)
        refused: int | None = None
        for number, one in enumerate(operations):
            try:
                path = f"c~/{one.id}" if one.id else "c~"
                single.write(one.method, path, None if one.method == "delete" else one.body)
            except EverlogError:
                refused = number
                single = before
                break
        request = batch_request(
            "c~", operations_of(operations), message_id=None, made_id="", correlation_id="", max_operations=9
        )
        found: list[DocumentChange] | EverlogError
        try:
            made = decide_batch(
                together.head,
                together.rows,
                {},
                request,
                now_ms=NOW,
                entropy=1,
                settings=WriteSettings(),
                check=accept_all,
            )
            assert isinstance(made, list)
            found = made
        except (DocumentNotFound, DocumentConflict) as error:
            found = error
        if isinstance(found, list):
            assert refused is None
            for change in found:
                together.apply(change)
        else:
            assert found.facts["operation"] == refused  # type: ignore[attr-defined]
    assert _shape(together) == _shape(single)


def _shape(world: World) -> Any:
    """What a world holds, without what is drawn by lot."""
    bodies = [row.body if len(item) == 1 else row.body[:-34] for item, row in sorted(world.rows.items())]
    head = world.head
    known = None if head is None else (head.revision, head.count, head.deleted)
    return known, bodies, [(one.revision, len(one.item), one.old_body is None) for one in world.outbox]
