"""What every store of documents promises about message ids: subclass it and provide the fixture `store`."""

from __future__ import annotations

from typing import Any

import pytest

from everlog.documents.bodies import decode_body
from everlog.documents.messages import KEPT_S, MESSAGE_MS, SLOT_MS, StoredMessage
from everlog.documents.model import DocumentChange, WriteSettings, WrittenDocument
from everlog.documents.paths import parse_path
from everlog.documents.port import DocumentStore
from everlog.errors import MessageReused, TooManyMessages
from everlog.testing.documents import NOW, build, ids, make_index, name, prepare, write


async def stored(store: DocumentStore, path: str, message_id: str) -> StoredMessage | None:
    return (await store.load(parse_path(path), message_id=message_id)).message


class DocumentMessageConformance:
    """A message is there if and only if its write is, for a day, and no other method sees it."""

    pytestmark = pytest.mark.asyncio

    async def test_a_repetition_gets_the_first_answer_whatever_came_between(self, store: DocumentStore) -> None:
        """After far more ids than one page, after the document's deletion, and after its second life."""
        uri = name() + "~"
        commands: tuple[tuple[str, str, Any], ...] = (
            ("put", f"{uri}/a", {"n": 1}),
            ("patch", f"{uri}/a", {"n": 2}),
            ("post", uri, {}),
        )
        first: list[DocumentChange] = []
        for number, (method, path, body) in enumerate((*commands, ("delete", f"{uri}/a", None))):
            made = await write(store, method, path, body, message_id=f"m{number}", remembered=True)
            assert isinstance(made, DocumentChange)
            first.append(made)
        for number in range(70):
            await write(store, "put", f"{uri}/b", {"n": number}, message_id=f"n{number}", remembered=True)
        for step in ("delete", "put"):
            await write(store, step, uri)
            for number, (method, path, body) in enumerate((*commands, ("delete", f"{uri}/a", None))):
                made = await prepare(store, method, path, body, message_id=f"m{number}", remembered=True)
                change = first[number]
                assert made == WrittenDocument(
                    change.transaction.id, change.place.path, number + 1, change.created, repeated=True
                )
        with pytest.raises(MessageReused):
            await prepare(store, "put", f"{uri}/a", {"n": 9}, message_id="m0", remembered=True)
        assert isinstance(await prepare(store, "put", name(), 1, message_id="m0", remembered=True), DocumentChange)

    async def test_a_write_that_loses_leaves_no_message(self, store: DocumentStore) -> None:
        path = name("d")
        first, second = [
            await prepare(store, "put", path, number, message_id=f"m{number}", remembered=True) for number in (1, 2)
        ]
        assert isinstance(first, DocumentChange)
        assert isinstance(second, DocumentChange)
        assert await store.accept(first)
        assert not await store.accept(second)
        assert await stored(store, path, "m1") == first.message
        assert await stored(store, path, "m2") is None
        head, _, message = await store.load(parse_path(path))
        assert head is not None
        assert (sum(count for _, count in head.messages), message) == (1, None)

    async def test_nothing_else_sees_a_message(self, store: DocumentStore) -> None:
        """Its id may be that of an element, of another kind, or the first and the last of all texts."""
        start = name("p")
        uri = f"{start}/c~"
        for number, message in enumerate(("a", "\x20", "\U0010ffff", "zz")):
            await write(store, "put", f"{uri}/{'ab'[number % 2]}", {"n": number}, message_id=message, remembered=True)
        await write(store, "put", f"{start}/d", 1, message_id="a", remembered=True)
        assert await ids(store, uri) == await ids(store, uri, "", "\U0010ffff\U0010ffff") == ["a", "b"]
        assert await ids(store, uri, reverse=True) == ["b", "a"]
        assert await store.cut(uri, 1) == ["a", "b"]
        assert sorted([place.path async for page in store.places(start) for place in page]) == [
            f"{uri}/a",
            f"{uri}/b",
            f"{start}/d",
        ]
        index = await build(store, uri, make_index("i", "n"), limit=1)
        assert index.count in (2, None)  # a store need not count
        state = await store.load(parse_path(f"{uri}/zz"), message_id="zz")
        assert (state.row, state.message is None) == (None, False)
        await write(store, "delete", uri)
        assert await ids(store, uri) == []
        assert await stored(store, uri, "zz") is not None

    async def test_the_count_goes_with_the_time_alone(self, store: DocumentStore) -> None:
        """It neither forgets nor drifts: messages leave it by the quarter hour, a day after they came."""
        path = name("d")
        settings = WriteSettings(max_messages=6)
        for number in range(6):
            await write(
                store, "put", path, number, message_id=f"m{number}", remembered=True, now_ms=NOW + number * SLOT_MS
            )
        last = NOW + 5 * SLOT_MS
        late: dict[str, Any] = {"now_ms": last, "settings": settings}
        with pytest.raises(TooManyMessages) as refused:
            await prepare(store, "put", path, 9, message_id="more", remembered=True, **late)
        first_end = (NOW // SLOT_MS + 1) * SLOT_MS + MESSAGE_MS
        assert refused.value.retry_after_s == -(-(first_end - last) // 1000)
        await write(store, "put", path, 9, **late)  # without an id
        repeated = await prepare(store, "put", path, 0, message_id="m0", remembered=True, **late)
        assert isinstance(repeated, WrittenDocument)
        then: dict[str, Any] = {"now_ms": first_end, "settings": settings}
        await write(store, "put", path, 10, message_id="more", remembered=True, **then)
        with pytest.raises(TooManyMessages):
            await prepare(store, "put", path, 11, message_id="again", remembered=True, **then)
        head, row, _ = await store.load(parse_path(path))
        assert head is not None
        assert row is not None
        assert (sum(count for _, count in head.messages), decode_body(row.body)) == (6, 10)

    async def test_messages_that_nothing_asks_for_are_removed_in_steps(self, store: DocumentStore) -> None:
        path, other = name("d"), name("e")
        for number in range(3):
            await write(store, "put", path, number, message_id=f"m{number}", remembered=True)
        late = NOW + KEPT_S * 1000 + 1
        await write(store, "put", other, 1, message_id="m", remembered=True, now_ms=late)
        while count := await store.forget_messages(late - KEPT_S * 1000, limit=2):
            assert count <= 2
        assert [await stored(store, path, f"m{number}") for number in range(3)] == [None] * 3
        assert await stored(store, other, "m") is not None
        made = await write(store, "put", path, 9, message_id="m0", remembered=True, now_ms=late)
        assert isinstance(made, DocumentChange)
