"""What every store of documents promises about batches: subclass it and provide the fixture `store`."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from everlog.documents.batch import batch_request, decide_batch, operations_of
from everlog.documents.bodies import decode_body
from everlog.documents.model import DocumentChange, WriteSettings, WrittenDocument, accept_all
from everlog.documents.paths import parse_path
from everlog.documents.port import DocumentStore
from everlog.testing.documents import NOW, build, ids, indexed, locate, make_index, name, waiting, write


async def prepare_batch(
    store: DocumentStore, path: str, *operations: dict[str, Any], message_id: str | None = None
) -> list[DocumentChange] | tuple[WrittenDocument, ...]:
    """Only decide."""
    request = batch_request(
        path,
        operations_of(operations),
        message_id=message_id,
        made_id="made",
        correlation_id="c",
        max_operations=100,
    )
    state = await store.load_rows(request.uri, request.items, request.message_ids)
    return decide_batch(
        *state, request, now_ms=NOW, entropy=uuid.uuid4().int, settings=WriteSettings(), check=accept_all
    )


async def batch(store: DocumentStore, path: str, *operations: dict[str, Any], **options: Any) -> list[DocumentChange]:
    """Decide and accept; the store must take it."""
    made = await prepare_batch(store, path, *operations, **options)
    assert isinstance(made, list)
    assert await store.accept(*made)
    return made


class DocumentBatchConformance:
    """A batch is stored as a whole or not at all, one revision and one event per operation."""

    pytestmark = pytest.mark.asyncio

    async def test_operations_see_each_other_in_order(self, store: DocumentStore) -> None:
        uri = name() + "~"
        await write(store, "put", f"{uri}/old", {"n": 1})
        await batch(
            store,
            uri,
            {"method": "put", "id": "a", "body": {"n": 1}},
            {"method": "patch", "id": "a", "body": {"n": None, "m": 2}},
            {"method": "delete", "id": "old"},
            {"method": "put", "id": "old", "body": {"n": 3}},
            {"method": "put", "id": "b", "body": {}},
            {"method": "delete", "id": "b"},
        )
        head, rows, _ = await store.load_rows(uri, ["a", "b", "old", "never"])
        assert head is not None
        assert (head.revision, head.count, head.pending) == (7, 2, 7)
        assert {item: (decode_body(row.body), row.revision) for item, row in rows.items()} == {
            "a": ({"m": 2, "id": "a"}, 3),
            "old": ({"n": 3, "id": "old"}, 5),
        }
        pending = await store.pending(uri, limit=100)
        assert [one.revision for one in pending] == list(range(1, 8))
        assert [decode_body(one.event)["method"] for one in pending[1:4]] == ["feed:put", "feed:patch", "feed:delete"]

    async def test_a_batch_begins_a_collection_or_a_document_and_ends_it(self, store: DocumentStore) -> None:
        uri, path = name() + "~", name("d")
        await batch(store, uri, {"method": "put"}, {"method": "put", "id": "a", "body": {}})
        assert await ids(store, uri) == ["a"]
        await batch(store, uri, {"method": "put", "id": "b", "body": {}}, {"method": "delete"})
        assert await ids(store, uri) == []
        await batch(store, uri, {"method": "put"}, {"method": "post", "body": {}}, {"method": "post", "body": {}})
        assert len(await ids(store, uri)) == 2
        await batch(store, path, {"method": "put", "body": 1}, {"method": "delete"}, {"method": "put", "body": 2})
        head, row, _ = await store.load(parse_path(path))
        assert head is not None
        assert row is not None
        assert (head.revision, head.deleted, row.body) == (3, False, "2")

    async def test_of_two_batches_one_leaves_nothing(self, store: DocumentStore) -> None:
        """Also against a single write, and against one whose message it shares."""
        uri = name() + "~"
        operations = [{"method": "put", "id": item, "body": {}} for item in "xyz"]
        first, second = [await prepare_batch(store, uri, *operations, message_id="m") for _ in range(2)]
        assert isinstance(first, list)
        assert isinstance(second, list)
        assert sorted(await asyncio.gather(store.accept(*first), store.accept(*second))) == [False, True]
        head, rows, messages = await store.load_rows(uri, ["x", "y", "z"], ["m", "other"])
        assert head is not None
        (message,) = messages.values()
        assert (head.revision, len(rows), len(message.results)) == (3, 3, 3)
        won = {one.transaction.uuid for one in (first if message == first[-1].message else second)}
        assert {one.uuid for one in await waiting(store, uri)} == won
        again = await prepare_batch(store, uri, *operations, message_id="m")
        assert isinstance(again, tuple)
        assert [(one.path, one.revision, one.created, one.repeated) for one in again] == [
            (f"{uri}/{item}", number, True, True) for number, item in enumerate("xyz", 1)
        ]

    async def test_an_index_follows_a_batch(self, store: DocumentStore) -> None:
        """What an element was between two operations of a batch never stays in an index."""
        uri = name() + "~"
        await write(store, "put", f"{uri}/1", {"a": "p"})
        index = await build(store, uri, make_index("by-a", "a"))
        await batch(
            store,
            uri,
            {"method": "put", "id": "1", "body": {"a": "q"}},
            {"method": "patch", "id": "1", "body": {"a": "r"}},
            {"method": "put", "id": "2", "body": {"a": "b"}},
            {"method": "delete", "id": "2"},
            {"method": "put", "id": "3", "body": {"a": "z"}},
        )
        pending = await store.pending(uri, limit=100)
        for one in (*reversed(pending), *pending):
            await store.update_index(uri, index, [one], locate, one.revision)
        await store.update_index(uri, index, pending, locate, pending[-1].revision)
        assert await indexed(store, uri, index) == ["1", "3"]

    async def test_a_batch_that_did_not_happen_is_abandoned_as_a_whole(self, store: DocumentStore) -> None:
        uri = name() + "~"
        made = await prepare_batch(store, uri, *[{"method": "post", "body": {}} for _ in range(5)])
        assert isinstance(made, list)
        for change in made:
            await store.add_transaction(change.transaction)
        orphans = await waiting(store, uri)
        assert len(orphans) == 5
        assert [await store.abandon(one, NOW) for one in orphans] == [True] * 5
        assert await waiting(store, uri) == []
        assert await store.load(parse_path(uri)) == (None, None, None)

    async def test_as_many_operations_as_there_may_be(self, store: DocumentStore) -> None:
        uri = name() + "~"
        await batch(store, uri, *[{"method": "put", "id": f"{n:03}", "body": {"n": n}} for n in range(100)])
        await batch(store, uri, *[{"method": "patch", "id": f"{n:03}", "body": {"m": "x" * 9000}} for n in range(100)])
        assert len(await ids(store, uri)) == 100
        assert [one.revision for one in await store.pending(uri, limit=500)] == list(range(1, 201))
