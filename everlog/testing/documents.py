"""The conformance suite of document stores: subclass it and provide the fixture `store`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.collections import prefix_range
from everlog.documents.filters.evaluation import make_matcher
from everlog.documents.ids import TransactionId, time_uuid
from everlog.documents.indexes import Index, IndexSortItem, IndexStatus
from everlog.documents.model import (
    DocumentChange,
    DocumentCommand,
    DocumentTransaction,
    WriteSettings,
    WrittenDocument,
    accept_all,
    decide,
)
from everlog.documents.nodes import Node, NodeState
from everlog.documents.order import index_key
from everlog.documents.paths import DocumentPlace, parse_path, quantum_of
from everlog.documents.port import DocumentStore, DocumentView, ExpiringRow, TemplateIndex, WaitingTransaction
from everlog.documents.query_plan import IndexRange
from everlog.documents.unshown import UnshownElement
from everlog.errors import Unreachable

NOW = 1_700_000_000_000
MANY = 10**9


async def write(
    store: DocumentStore, method: Any, path: str, body: Any = None, **options: Any
) -> WrittenDocument | DocumentChange:
    """Decide and accept; the store must take it."""
    made = await prepare(store, method, path, body, **options)
    if isinstance(made, DocumentChange):
        assert await store.accept(made)
    return made


async def prepare(
    store: DocumentStore,
    method: Any,
    path: str,
    body: Any = None,
    *,
    now_ms: int = NOW,
    settings: WriteSettings = WriteSettings(),  # noqa: B008  # it is frozen
    **options: Any,
) -> WrittenDocument | DocumentChange:
    """Only decide."""
    place = parse_path(path)
    state = await store.load(place, message_id=options.get("message_id"))
    command = DocumentCommand(method, place, body, **options)
    return decide(*state, command, now_ms=now_ms, entropy=uuid.uuid4().int, settings=settings, check=accept_all)


def name(prefix: str = "c") -> str:
    """A path of its own for every test: stores may be shared."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def locate(index: Index, bodies: Sequence[str]) -> list[bytes | None]:
    matches = make_matcher(index.condition)
    elements = [decode_body(body) for body in bodies]
    return [index_key(element, index.sort) if matches(element, NOW) else None for element in elements]


def make_index(index_id: str, *fields: str, condition: str | None = None) -> Index:
    items = tuple(IndexSortItem(field) for field in fields)
    return Index(index_id, items, condition, IndexStatus.INDEXING, str(uuid.uuid4()))


async def ids(store: DocumentStore, uri: str, low: str = "", high: str | None = None, **options: Any) -> list[str]:
    found = await store.elements(
        uri, IndexRange(low, high), **{"reverse": False, "limit": 1000, "max_bytes": MANY, **options}
    )
    return [str(entry.key) for entry in found.entries]


async def indexed(store: DocumentStore, uri: str, index: Index, **options: Any) -> list[str]:
    settings = {"reverse": False, "limit": 1000, "max_bytes": MANY, **options}
    found = await store.entries(uri, index, IndexRange(b"", b"\xff"), **settings)
    return [decode_body(entry.body)["id"] for entry in found.entries]


async def build(store: DocumentStore, uri: str, index: Index, *, limit: int = 2) -> Index:
    """Build an index to its end, and return it as it is stored."""
    assert await store.create_index(uri, index)
    return await finish(store, uri, index, limit=limit)


async def finish(store: DocumentStore, uri: str, index: Index, *, limit: int = 2) -> Index:
    """The same for one that is defined."""
    while not await store.build(uri, index, locate, limit=limit):
        pass
    return next(one for one in await store.indexes(uri) if one.index_id == index.index_id)


async def waiting(
    store: DocumentStore, uri: str, first: int = quantum_of(NOW) - 1, last: int = quantum_of(NOW) + 10
) -> list[WaitingTransaction]:
    return [one async for page in store.incomplete(first, last) for one in page if one.uri == uri]


async def pending_indexes(store: DocumentStore, uri: str) -> list[tuple[str, IndexStatus]]:
    found = await store.pending_indexes()
    return [(one.definition.index_id, one.definition.status) for one in found if one.uri == uri]


class DocumentStoreConformance:
    """What every store of documents promises."""

    pytestmark = pytest.mark.asyncio

    async def test_a_document_comes_back_as_it_was_written(self, store: DocumentStore) -> None:
        path = name("d")
        assert await store.load(parse_path(path)) == (None, None, None)
        await write(store, "put", path, {"a": 1, "text": "ü\u0000"}, message_id="m", remembered=True)
        head, row, _ = await store.load(parse_path(path))
        assert head is not None
        assert row is not None
        assert (head.revision, head.deleted, head.pending, len(head.messages)) == (1, False, 1, 1)
        assert (decode_body(row.body), row.revision, row.created_ms) == ({"a": 1, "text": "ü\u0000"}, 1, NOW)
        await write(store, "patch", path, {"a": None}, now_ms=NOW + 5)
        head, row, _ = await store.load(parse_path(path))
        assert head is not None
        assert row is not None
        assert (head.revision, row.revision, row.created_ms, row.modified_ms) == (2, 2, NOW, NOW + 5)
        await write(store, "delete", path)
        head, row, _ = await store.load(parse_path(path))
        assert head is not None
        assert (head.revision, head.deleted, row) == (3, True, None)

    async def test_of_two_writers_one_loses(self, store: DocumentStore) -> None:
        """Both decided on the same revision: the second finds another one, and leaves nothing behind."""
        path = name("d")
        await write(store, "put", path, 0)
        first, second = [await prepare(store, "put", path, number) for number in (1, 2)]
        assert isinstance(first, DocumentChange)
        assert isinstance(second, DocumentChange)
        assert await store.accept(first)
        assert not await store.accept(second)
        head, row, _ = await store.load(parse_path(path))
        assert head is not None
        assert row is not None
        assert (head.revision, row.body) == (2, "1")
        assert [one.revision for one in await store.pending(path, limit=10)] == [1, 2]

    async def test_many_writers_make_revisions_without_hole_or_double(self, store: DocumentStore) -> None:
        path = name("d")
        accepted: list[int] = []

        async def writer(number: int) -> None:
            for _ in range(5):
                while True:
                    made = await prepare(store, "put", path, number)
                    assert isinstance(made, DocumentChange)
                    if await store.accept(made):
                        accepted.append(made.head.revision)
                        break

        await asyncio.gather(*[writer(number) for number in range(5)])
        assert sorted(accepted) == list(range(1, 26))
        assert [one.revision for one in await store.pending(path, limit=100)] == list(range(1, 26))

    async def test_elements_are_read_in_the_order_of_their_ids(self, store: DocumentStore) -> None:
        uri = name() + "~"
        for item in ("b", "a", "c~", "B", "a1"):
            await write(store, "put", f"{uri}/{item}", {"n": item})
        await write(store, "put", name() + "~/x", {})
        assert await ids(store, uri) == ["B", "a", "a1", "b", "c~"]
        assert await ids(store, uri, reverse=True) == ["c~", "b", "a1", "a", "B"]
        assert await ids(store, uri, "a", "b") == ["a", "a1"]
        assert await ids(store, uri, "a\0", "b\0") == ["a1", "b"]
        assert await ids(store, uri, "a", "b\0", reverse=True, limit=2) == ["b", "a1"]
        batch = await store.elements(uri, IndexRange("", None), reverse=False, limit=2, max_bytes=MANY)
        assert batch.more
        batch = await store.elements(uri, IndexRange("", None), reverse=False, limit=100, max_bytes=1)
        assert (len(batch.entries), batch.more) == (1, True)
        assert not (await store.elements(uri, IndexRange("", None), reverse=False, limit=6, max_bytes=MANY)).more

    async def test_elements_come_with_the_revision_of_their_last_write(self, store: DocumentStore) -> None:
        uri = name() + "~"
        for item in ("b", "a", "c"):
            await write(store, "put", f"{uri}/{item}", {"n": item})
        await write(store, "patch", f"{uri}/b", {"n": 1})
        await write(store, "delete", f"{uri}/c")
        first, second = await store.elements_after(uri, "", limit=10)
        assert (first.item, first.revision, second.item, second.revision) == ("a", 2, "b", 4)
        assert decode_body(second.body) == {"n": 1, "id": "b"}
        assert await store.elements_after(uri, "", limit=1) == [first]
        assert (await store.elements_after(uri, "", limit=10, max_bytes=1))[:1] == [first]
        assert await store.elements_after(uri, "a", limit=1) == [second]
        assert await store.elements_after(uri, "b", limit=1) == []

    async def test_what_is_to_be_deleted_is_named(self, store: DocumentStore) -> None:
        """Each row with its instant, from then on and until it is gone; one that was written again is no longer due."""
        uri, now_ms = name() + "~", NOW + 7_200_000
        for item, ttl_s in (("a", 1), ("b", 3600), ("c", 2), ("d", None), ("e", 1)):
            await write(store, "put", f"{uri}/{item}", {}, ttl_s=ttl_s, now_ms=now_ms)
        await write(store, "patch", f"{uri}/e", {"n": 1}, now_ms=now_ms)
        await write(store, "put", uri[:-1], 1, ttl_s=5, now_ms=now_ms)

        async def due(at_ms: int) -> list[ExpiringRow]:
            """Those that still have the instant by which they are named."""
            found = [row async for page in store.expiring(at_ms) for row in page if row.uri in (uri, uri[:-1])]
            rows = [(await store.load(DocumentPlace(one.uri, one.item))).row for one in found]
            return sorted(one for one, row in zip(found, rows, strict=True) if row and row.expires_ms == one.expires_ms)

        assert await due(now_ms) == []
        first, second = ExpiringRow(now_ms + 1000, uri, "a"), ExpiringRow(now_ms + 2000, uri, "c")
        assert await due(now_ms + 2000) == [first, second]
        third = ExpiringRow(now_ms + 5000, uri[:-1], "")
        assert await due(now_ms + 5000) == [first, second, third]
        await write(store, "delete", f"{uri}/a")
        await store.forget_expiring([first])
        assert await due(now_ms + 5000) == [second, third]
        assert await due(now_ms + 3_600_000) == [second, third, ExpiringRow(now_ms + 3_600_000, uri, "b")]

    async def test_the_outbox_tells_what_a_write_replaced(self, store: DocumentStore) -> None:
        """Also after its event is out: live queries ask for it then."""
        uri = name() + "~"
        made = [
            await write(store, method, f"{uri}/a", body)
            for method, body in (("put", {"n": 1}), ("patch", {"n": 2}), ("delete", None), ("put", {"n": 3}))
        ]
        await write(store, "delete", uri)
        made.append(await write(store, "put", f"{uri}/a", {}))
        await store.complete(uri, await store.pending(uri, limit=10), NOW)
        known = []
        for change in made:
            assert isinstance(change, DocumentChange)
            row = await store.transaction(TransactionId.parse(change.transaction.id))
            assert row is not None
            known.append(None if row.old_body is None else decode_body(row.old_body)["n"])
        assert known == [None, 1, 2, None, None]

    async def test_a_deleted_collection_leaves_no_element_behind(self, store: DocumentStore) -> None:
        uri = name() + "~"
        for item in ("a", "b"):
            await write(store, "put", f"{uri}/{item}", {})
        await write(store, "delete", f"{uri}/a")
        assert await ids(store, uri) == ["b"]
        await write(store, "delete", uri)
        assert await ids(store, uri) == []
        head, _, _ = await store.load(parse_path(uri))
        assert head is not None
        assert (head.revision, head.deleted, head.count) == (4, True, 0)
        await write(store, "put", f"{uri}/new", {})
        assert await ids(store, uri) == ["new"]

    async def test_the_outbox_keeps_events_until_they_are_out(self, store: DocumentStore) -> None:
        path = name("d")
        await write(store, "put", path, 1)
        await write(store, "put", path, 2)
        pending = await store.pending(path, limit=10)
        assert [decode_body(one.event)["body"] for one in pending] == [1, 2]
        assert [one.revision for one in await store.pending(path, limit=1)] == [1]
        assert {one.revision for one in await waiting(store, path)} == {1, 2}
        await store.complete(path, pending[:1], NOW + 1)
        assert [one.revision for one in await store.pending(path, limit=10)] == [2]
        found = await store.transaction(TransactionId.parse(pending[0].id))
        assert found is not None
        assert found.completed_ms == NOW + 1
        head, _, _ = await store.load(parse_path(path))
        assert head is not None
        assert head.pending == 1
        await store.complete(path, pending, NOW + 2)
        assert await waiting(store, path) == []
        missing = TransactionId(path, time_uuid(NOW, 1), 9)
        assert await store.transaction(missing) is None

    async def test_minutes_bound_what_is_looked_through(self, store: DocumentStore) -> None:
        path = name("d")
        for minute in range(3):
            await write(store, "put", path, minute, now_ms=NOW + minute * 60_000)
        first = quantum_of(NOW)
        assert [one.revision for one in await waiting(store, path, first + 1, first + 1)] == [2]
        assert sorted(one.revision for one in await waiting(store, path, first, first + 1)) == [1, 2]

    async def test_only_an_orphan_is_abandoned(self, store: DocumentStore) -> None:
        path = name("d")
        await write(store, "put", path, 1)
        (accepted,) = await store.pending(path, limit=10)
        orphan = DocumentTransaction(path, str(time_uuid(NOW, 7)), 2, "", "{}")
        other = DocumentTransaction(name("never"), str(time_uuid(NOW, 8)), 1, "", "{}")
        for one in (orphan, other):
            await store.add_transaction(one)
        assert [one.uuid for one in await store.pending(path, limit=10)] == [accepted.uuid]
        assert not await store.abandon(WaitingTransaction(path, accepted.uuid, 1), NOW)
        assert await store.abandon(WaitingTransaction(path, orphan.uuid, 2), NOW)
        assert await store.abandon(WaitingTransaction(other.uri, other.uuid, 1), NOW)
        assert [one.uuid for one in await waiting(store, path)] == [accepted.uuid]
        assert await waiting(store, other.uri) == []

    async def test_completed_rows_are_forgotten_after_a_while(self, store: DocumentStore) -> None:
        path = name("d")
        await write(store, "put", path, 1)
        await write(store, "put", path, 2)
        first, _ = await store.pending(path, limit=10)
        await store.complete(path, [first], NOW)
        while await store.forget(NOW + 1):
            pass
        assert await store.transaction(TransactionId.parse(first.id)) is None
        assert [one.revision for one in await store.pending(path, limit=10)] == [2]

    async def test_an_index_follows_the_elements(self, store: DocumentStore) -> None:
        uri = name() + "~"
        for item, a, b in (("1", "x", 5), ("2", None, 20), ("3", "a", 30)):
            await write(store, "put", f"{uri}/{item}", {"a": a, "b": b})
        index = await build(store, uri, make_index("by-a", "a", condition="b > 10"))
        assert (index.status, index.revision) == (IndexStatus.READY, 3)
        assert index.count in (2, None)  # a store need not count
        assert await indexed(store, uri, index) == ["2", "3"]
        assert await indexed(store, uri, index, reverse=True, limit=1) == ["3"]
        await store.complete(uri, await store.pending(uri, limit=10), NOW)
        await write(store, "patch", f"{uri}/1", {"b": 11})
        await write(store, "patch", f"{uri}/3", {"a": "zz"})
        await write(store, "delete", f"{uri}/2")
        pending = await store.pending(uri, limit=10)
        await store.update_index(uri, index, pending, locate, 6)
        assert await indexed(store, uri, index) == ["1", "3"]
        await store.update_index(uri, index, pending, locate, 6)
        (found,) = await store.indexes(uri)
        assert found.revision == 6
        assert found.count in (2, None)  # a store need not count
        await store.update_index(uri, index, pending[:1], locate, 4)
        assert (await store.indexes(uri))[0].revision == 6

    async def test_what_an_index_may_not_know(self, store: DocumentStore) -> None:
        """Pending writes, the elements that they are about as they are now, and how many others an index holds."""
        uri = name() + "~"
        for item in ("1", "2", "3"):
            await write(store, "put", f"{uri}/{item}", {"a": item})
        await store.complete(uri, await store.pending(uri, limit=10), NOW)
        index = await build(store, uri, make_index("by-a", "a"))
        assert await store.pending_writes(uri) == []
        await write(store, "patch", f"{uri}/2", {"a": "9"})
        await write(store, "delete", f"{uri}/3")
        await write(store, "put", f"{uri}/4", {"a": "x"})
        found = await store.pending_writes(uri)
        assert [(one.revision, one.item, one.ends_collection) for one in found] == [
            (4, "2", False),
            (5, "3", False),
            (6, "4", False),
        ]
        rows = await store.rows(uri, ["2", "3", "4", "5"])
        assert {row.key: decode_body(row.body)["a"] for row in rows} == {"2": "9", "4": "x"}
        assert await store.count_others(uri, index, ["2", "3", "4"]) in (1, None)  # a store need not count
        await store.complete(uri, (await store.pending(uri, limit=10))[:2], NOW)
        await write(store, "delete", uri)
        await write(store, "put", uri)
        found = await store.pending_writes(uri)
        assert [(one.revision, one.item, one.ends_collection) for one in found] == [
            (6, "4", False),
            (7, "", True),
            (8, "", False),
        ]
        assert await store.rows(uri, ["2", "4"]) == []

    async def test_updates_may_come_late_and_in_any_order(self, store: DocumentStore) -> None:
        """An index holds what the element is now, whichever update comes last."""
        uri = name() + "~"
        index = await build(store, uri, make_index("by-a", "a"))
        for value in ("p", "q", "r"):
            await write(store, "put", f"{uri}/1", {"a": value})
        pending = await store.pending(uri, limit=10)
        for one in (*reversed(pending), *pending, pending[0]):
            await store.update_index(uri, index, [one], locate, one.revision)
        found = await store.entries(uri, index, IndexRange(b"", b"\xff"), reverse=False, limit=10, max_bytes=MANY)
        assert [decode_body(entry.body)["a"] for entry in found.entries] == ["r"]

    async def test_writes_during_a_build_are_in_the_index(self, store: DocumentStore) -> None:
        uri = name() + "~"
        for number in range(6):
            await write(store, "put", f"{uri}/{number}", {"a": number})
        await store.complete(uri, await store.pending(uri, limit=10), NOW)
        index = make_index("by-a", "a")
        assert await store.create_index(uri, index)
        assert not await store.build(uri, index, locate, limit=4)
        await write(store, "put", f"{uri}/0", {"a": 9})
        await write(store, "put", f"{uri}/5", {"a": -1})
        await write(store, "delete", f"{uri}/1")
        pending = await store.pending(uri, limit=10)
        await store.update_index(uri, index, pending, locate, 9)
        while not await store.build(uri, index, locate, limit=4):
            pass
        (found,) = await store.indexes(uri)
        assert found.status is IndexStatus.READY
        assert found.count in (5, None)
        assert await indexed(store, uri, found) == ["5", "2", "3", "4", "0"]

    async def test_parts_of_an_index_may_be_built_by_several_at_once(self, store: DocumentStore) -> None:
        """Ranges of ids, each to its end, in any order and twice; writes go on meanwhile."""
        uri = name() + "~"
        for number in range(10):
            await write(store, "put", f"{uri}/{number}", {"a": -number})
        await store.complete(uri, await store.pending(uri, limit=20), NOW)
        index = make_index("by-a", "a", condition="a < 0")
        assert await store.create_index(uri, index)
        assert await store.cut(uri, 4) == ["3", "7"]
        await write(store, "put", f"{uri}/5", {"a": -50})
        await write(store, "delete", f"{uri}/6")
        ranges: list[tuple[str, str | None]] = [("7", None), ("", "3"), ("3", "7"), ("", "3")]
        for after, to in ranges:
            place: str | None = after
            while place is not None:
                place = await store.build_part(uri, index, locate, after=place, to=to, limit=3)
        await store.update_index(uri, index, await store.pending(uri, limit=20), locate, 12)
        assert await store.finish(uri, index, 10)
        assert not await store.finish(uri, index, 10)
        (found,) = await store.indexes(uri)
        assert (found.status, found.revision) == (IndexStatus.READY, 12)
        assert found.count in (8, None)
        assert await indexed(store, uri, found) == ["5", "9", "8", "7", "4", "3", "2", "1"]
        assert await pending_indexes(store, uri) == []

    async def test_places(self, store: DocumentStore) -> None:
        start = name("p")
        for path in (f"{start}/a", f"{start}/b~/1", f"{start}/b~/2", f"{start}/gone", start[:-1]):
            await write(store, "put", path, {})
        await write(store, "delete", f"{start}/gone")
        found = [place.path async for page in store.places(start) for place in page]
        assert sorted(found) == [f"{start}/a", f"{start}/b~/1", f"{start}/b~/2"]

    async def test_nodes(self, store: DocumentStore) -> None:
        table = store.node_table()
        one, two = [Node(name("n"), f"http://{number}", NodeState.ACTIVATING, number) for number in (1, 2)]
        await table.save(one)
        await table.save(two)
        one = msgspec.structs.replace(one, state=NodeState.ACTIVE, beat=9, view="v", seen_ms=NOW)
        await table.save(one)
        assert [node for node in await table.nodes() if node.id in (one.id, two.id)] == sorted(
            [one, two], key=lambda node: node.id
        )
        await table.remove(two.id)
        await table.remove(two.id)
        assert two.id not in [node.id for node in await table.nodes()]
        await table.close()

    async def test_the_life_of_an_index(self, store: DocumentStore) -> None:
        uri = name() + "~"
        await write(store, "put", f"{uri}/1", {"a": 1})
        index = await build(store, uri, make_index("i", "a"))
        assert not await store.create_index(uri, make_index("i", "b"))
        assert await store.mark_index(uri, index, IndexStatus.DELETING)
        assert not await store.mark_index(uri, index, IndexStatus.DELETING)
        assert not await store.mark_index(uri, index, IndexStatus.FAILED, "too late")
        assert await pending_indexes(store, uri) == [("i", IndexStatus.DELETING)]
        while not await store.drop_index(uri, index, limit=1):
            pass
        assert await store.indexes(uri) == []
        again = make_index("i", "b")
        assert await store.create_index(uri, again)
        assert await pending_indexes(store, uri) == [("i", IndexStatus.INDEXING)]
        assert not await store.mark_index(uri, index, IndexStatus.FAILED)  # the old definition, not this one
        assert await store.mark_index(uri, again, IndexStatus.FAILED, "because")
        (found,) = await store.indexes(uri)
        assert (found.status, found.reason) == (IndexStatus.FAILED, "because")

    async def test_an_element_that_cannot_be_indexed_changes_nothing(self, store: DocumentStore) -> None:
        uri = name() + "~"
        index = await build(store, uri, make_index("i", "a"))
        await write(store, "put", f"{uri}/1", {"a": 1})

        async def refuse(index: Index, bodies: Sequence[str]) -> list[bytes | None]:
            raise ValueError("no place")

        with pytest.raises(ValueError, match="no place"):
            await store.update_index(uri, index, await store.pending(uri, limit=10), refuse, 1)
        assert await indexed(store, uri, index) == []
        assert (await store.indexes(uri))[0].revision == 0

    async def test_an_element_is_written_while_its_place_in_an_index_is_found_out(self, store: DocumentStore) -> None:
        """That takes its time, and nothing is locked meanwhile: the newer content stays, whichever comes last."""
        for built in (True, False):
            uri, index = name() + "~", make_index("i", "a")
            assert await store.create_index(uri, index)
            if built:
                index = await finish(store, uri, index)
            await write(store, "put", f"{uri}/x", {"a": 1})
            overtaken = False

            async def late(index: Index, bodies: Sequence[str], uri: str = uri) -> list[bytes | None]:
                nonlocal overtaken
                keys = await locate(index, bodies)
                if not overtaken:
                    overtaken = True
                    await write(store, "put", f"{uri}/x", {"a": 2})
                    await store.update_index(uri, index, await store.pending(uri, limit=10), locate, 2)
                return keys

            if built:
                await store.update_index(uri, index, (await store.pending(uri, limit=10))[:1], late, 1)
            else:
                while not await store.build(uri, index, late, limit=2):
                    pass
            found = await store.entries(uri, index, IndexRange(b"", b"\xff"), reverse=False, limit=10, max_bytes=MANY)
            assert overtaken
            assert [decode_body(entry.body) for entry in found.entries] == [{"a": 2, "id": "x"}], built

    async def test_a_checkpoint_never_moves_back(self, store: DocumentStore) -> None:
        before = (await store.checkpoints()).get(7, 0)
        await store.save_checkpoints({7: before + 10, 8: before + 3})
        await store.save_checkpoints({7: before + 5})
        found = await store.checkpoints()
        assert found[7] == before + 10
        assert found[8] >= before + 3

    async def test_views_and_template_indexes(self, store: DocumentStore) -> None:
        view = DocumentView(name("v") + "~", "abc/{*}", "a > 5")
        assert await store.put_view(view)
        assert not await store.put_view(view)
        assert view in await store.views()
        await store.mark_filled(view.uri)
        assert view._replace(filled=True) in await store.views()
        await store.recheck_view(view.uri, "first")
        await store.recheck_view(view.uri, "second")
        await store.mark_checked(view.uri, "first")
        assert view._replace(filled=True, recheck="second") in await store.views()
        await store.mark_checked(view.uri, "second")
        assert view._replace(filled=True) in await store.views()
        await store.recheck_view(view.uri, "third", refill=True)
        assert view._replace(filled=False, recheck="third") in await store.views()
        assert await store.delete_view(view.uri)
        assert not await store.delete_view(view.uri)
        with contextlib.suppress(Unreachable):
            await store.recheck_view(view.uri, "late")
        assert view.uri not in [one.uri for one in await store.views()]
        template = TemplateIndex(name("t"), "abc/{*}~", encode_body({"sortBy": []}))
        assert await store.put_template_index(template)
        assert not await store.put_template_index(template)
        assert template in await store.template_indexes()
        assert await store.delete_template_index(template.index_id)
        assert not await store.delete_template_index(template.index_id)

    async def test_what_views_cannot_show(self, store: DocumentStore) -> None:
        """Every change names what it replaces: of two tasks one finds that it was too late."""
        table, view = store.unshown_table(), name("v") + "~"
        rows = [UnshownElement(view, f"c~/{item}", "code", "ü", 3, NOW) for item in "cab"]
        for row in rows:
            assert await table.put(row, None)
            assert not await table.put(row, None)
        assert await table.put(UnshownElement(name("v") + "~", "c~/a", "code", "", 1, NOW), None)
        assert await table.count(view) == 3
        assert [one.source for one in await table.page(view, after="", limit=2)] == ["c~/a", "c~/b"]
        assert [one.source for one in await table.page(view, after="c~/b", limit=2)] == ["c~/c"]
        newer = msgspec.structs.replace(rows[0], revision=4, attempts=2, reason="again")
        assert await table.put(newer, rows[0])
        assert not await table.put(newer, rows[0])
        assert await table.find(view, "c~/c") == newer
        await table.remove(rows[0])
        assert await table.find(view, "c~/c") == newer
        await table.remove(newer)
        assert await table.find(view, "c~/c") is None
        assert not await table.put(newer, newer)
        await table.clear(view)
        assert await table.page(view, after="", limit=10) == []

    async def test_a_list_of_collections(self, store: DocumentStore) -> None:
        """Those that are there, in the order of their paths, whatever else is stored between them."""
        prefix = name("käse ") + "/"
        for path in ("b~/1", "b~/2", "a~/x", "a~b", "ä~/1", "gone~/1", "z", "view~/1", "z~/y/z", "again~/1"):
            await write(store, "put", prefix + path, {"n": 1})
        await write(store, "put", prefix + "empty~")
        for path in ("gone~", "again~"):
            await write(store, "delete", prefix + path)
        await write(store, "put", prefix + "again~/2", {"n": 2})
        await store.create_index(f"{prefix}b~", make_index("i", "n"))
        await store.create_index(f"{prefix}b~", make_index("gone", "n"))
        await store.mark_index(f"{prefix}b~", (await store.indexes(f"{prefix}b~"))[0], IndexStatus.DELETING)
        whole = await store.collections(prefix_range(prefix, ""), limit=100)
        wanted = [
            ("again~", 3, 1, 0),
            ("a~", 1, 1, 0),
            ("b~", 2, 2, 1),
            ("empty~", 1, 0, 0),
            ("view~", 1, 1, 0),
            ("ä~", 1, 1, 0),
        ]
        assert [
            (one.path.removeprefix(prefix), one.revision, one.count, one.indexes) for one in whole.collections
        ] == wanted
        assert whole.next is None
        assert not any(one.view for one in whole.collections)
        for limit in (1, 2, 4, 7):
            found, after = [], ""
            for _ in range(20):
                page = await store.collections(prefix_range(prefix, after), limit=limit)
                assert len(page.collections) <= limit
                found += page.collections
                if page.next is None:
                    break
                after = page.next
            assert found == whole.collections
        assert (await store.collections(prefix_range(prefix + "b", ""), limit=9)).collections == whole.collections[2:3]
        assert (await store.collections(prefix_range(prefix + "none", ""), limit=9)).collections == []

    async def test_large_bodies(self, store: DocumentStore) -> None:
        path = name("d")
        await write(store, "put", path, "x" * 1_000_000)
        _, row, _ = await store.load(parse_path(path))
        assert row is not None
        assert len(row.body) == 1_000_002
