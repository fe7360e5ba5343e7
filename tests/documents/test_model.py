"""The decision about a write, against a model that is a plain dictionary."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from everlog.documents.bodies import decode_body, merge, without_nulls
from everlog.documents.ids import TransactionId, is_generated
from everlog.documents.messages import MESSAGE_MS, StoredMessage
from everlog.documents.model import (
    DocumentChange,
    DocumentCommand,
    DocumentHead,
    DocumentRow,
    DocumentTransaction,
    Preconditions,
    WriteSettings,
    WrittenDocument,
    accept_all,
    decide,
)
from everlog.documents.paths import parse_path
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

NOW = 1_700_000_000_000


class World:
    """One document or collection, and what was written to it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = WriteSettings(**settings)
        self.head: DocumentHead | None = None
        self.rows: dict[str, DocumentRow] = {}
        self.messages: dict[str, StoredMessage] = {}
        self.outbox: list[DocumentTransaction] = []
        self.entropy = 0

    def write(
        self, method: Any, path: str, body: Any = None, *, now_ms: int = NOW, **options: Any
    ) -> WrittenDocument | DocumentChange:
        place = parse_path(path)
        self.entropy += 1
        command = DocumentCommand(method, place, body, **options)
        made = decide(
            self.head,
            self.rows.get(place.item),
            self.messages.get(command.message_id),
            command,
            now_ms=now_ms,
            entropy=self.entropy,
            settings=self.settings,
            check=accept_all,
        )
        if isinstance(made, DocumentChange):
            self.apply(made)
        return made

    def apply(self, made: DocumentChange) -> None:
        assert made.expected == (0 if self.head is None else self.head.revision)
        self.head = made.head
        if made.clears:
            self.rows.clear()
        if made.row is None:
            self.rows.pop(made.place.item, None)
        else:
            self.rows[made.place.item] = made.row
        if made.message is not None:
            self.messages[made.message.id] = made.message
        self.outbox.append(made.transaction)

    def body(self, item: str = "") -> Any:
        row = self.rows.get(item)
        return None if row is None or self.head is None or self.head.deleted else decode_body(row.body)


def refused(kind: type[EverlogError], code: str, world: World, *arguments: Any, **options: Any) -> None:
    before = (world.head, dict(world.rows), len(world.outbox))
    with pytest.raises(kind) as caught:
        world.write(*arguments, **options)
    assert caught.value.code == code
    assert (world.head, world.rows, len(world.outbox)) == before


@pytest.mark.case("hyperstorage", 10, 21, 22, 8, 9)
def test_a_document_from_birth_to_second_life():
    world = World()
    refused(DocumentNotFound, "not_found", world, "delete", "d")
    refused(DocumentNotFound, "not_found", world, "patch", "d", {})
    world.write("put", "d", {"a": 1, "n": None})
    refused(InvalidDocument, "patch-not-object", world, "patch", "d", "abc")
    world.write("patch", "d", {"a": None, "b": {"c": 1}})
    assert world.body() == {"b": {"c": 1}}
    world.write("delete", "d")
    refused(DocumentNotFound, "not_found", world, "delete", "d")
    refused(DocumentNotFound, "not_found", world, "patch", "d", {})
    made = world.write("put", "d", "text")
    assert isinstance(made, DocumentChange)
    assert (made.head.revision, made.head.deleted) == (4, False)
    refused(InvalidDocument, "not-mergeable", world, "patch", "d", {})
    assert [one.revision for one in world.outbox] == [1, 2, 3, 4]


@pytest.mark.case("hyperstorage", 17, 24, 25, 27, 28, 29, 30, 33)
def test_a_collection():
    world = World()
    world.write("put", "c~/x", {"id": "zzz", "a": 1})
    assert world.body("x") == {"id": "x", "a": 1}
    refused(DocumentConflict, "collection-put-not-implemented", world, "put", "c~", {"a": 1})
    refused(DocumentConflict, "already-exists", world, "put", "c~")
    refused(DocumentConflict, "collection_patch_not_implemented", world, "patch", "c~", {"a": 1})
    refused(InvalidDocument, "element-not-object", world, "put", "c~/y", "text")
    refused(InvalidDocument, "element-not-object", world, "post", "c~", [1])
    refused(DocumentConflict, "field_is_protected", world, "patch", "c~/x", {"id": "y"})
    refused(DocumentConflict, "field_is_protected", world, "patch", "c~/x", {"id": None})
    refused(DocumentNotFound, "not_found", world, "delete", "c~/absent")
    refused(InvalidDocument, "post-not-allowed", World(), "post", "doc", {})
    world.write("patch", "c~/x", {"b": None, "c": 2})
    assert decode_body(world.outbox[-1].event)["body"] == {"b": None, "c": 2}
    posted = world.write("post", "c~", {"a": 2})
    assert isinstance(posted, DocumentChange)
    assert is_generated(posted.place.item)
    event = decode_body(posted.transaction.event)
    assert event["method"] == "feed:put"
    assert event["body"] == {"a": 2, "id": posted.place.item}
    assert world.head is not None
    assert world.head.count == 2
    world.write("delete", "c~")
    assert (world.rows, world.head.deleted, world.head.count) == ({}, True, 0)
    world.write("put", "c~/new", {})
    assert list(world.rows) == ["new"]
    assert (world.head.count, world.head.revision) == (1, 5)


def test_an_empty_collection_can_be_made():
    world = World()
    world.write("put", "c~")
    assert world.head == DocumentHead(revision=1, pending=0)


def test_preconditions_are_of_the_element_not_of_its_siblings():
    world = World()
    world.write("put", "c~/x", {})
    world.write("put", "c~/y", {})
    refused(PreconditionFailed, "not_matched", world, "put", "c~/x", {}, preconditions=Preconditions.of('"2"', None))
    world.write("put", "c~/x", {}, preconditions=Preconditions.of('"1"', None))
    refused(PreconditionFailed, "not_matched", world, "put", "c~/x", {}, preconditions=Preconditions.of(None, "*"))
    world.write("put", "c~/z", {}, preconditions=Preconditions.of(None, "*"))
    refused(PreconditionFailed, "not_matched", world, "put", "c~/w", {}, preconditions=Preconditions.of("*", None))


def test_patches_do_not_grow_a_body_beyond_its_limit():
    world = World(max_body_bytes=20)
    world.write("put", "d", {"a": "0123456789"})
    refused(InvalidDocument, "body-too-large", world, "patch", "d", {"b": "0123456789"})
    refused(InvalidDocument, "body-too-large", world, "put", "d", "\u00fc" * 10)
    world.write("patch", "d", {"a": None, "b": "0123456789"})


def test_too_many_pending_events_hold_writers_back():
    world = World(max_pending=2)
    world.head = DocumentHead(revision=5, pending=2)
    refused(TooManyPending, "transaction_limit", world, "put", "d", {})


def test_a_repeated_message_gets_its_first_answer():
    world = World()
    message = {"message_id": "m1", "remembered": True}
    first = world.write("post", "c~", {"a": 1}, **message)
    assert isinstance(first, DocumentChange)
    again = world.write("post", "c~", {"a": 1}, **message)
    assert again == WrittenDocument(first.transaction.id, first.place.path, 1, created=True, repeated=True)
    refused(MessageReused, "message-id-reused", world, "post", "c~", {"a": 2}, **message)
    assert isinstance(world.write("post", "c~", {"a": 1}, now_ms=NOW + MESSAGE_MS, **message), DocumentChange)
    for number in range(100):
        world.write("post", "c~", {}, message_id=f"n{number}", remembered=True)
    world.write("delete", "c~", now_ms=NOW + 1)
    assert world.write("post", "c~", {}, message_id="n0", remembered=True, now_ms=NOW + MESSAGE_MS - 1) == (
        WrittenDocument(world.outbox[2].id, f"c~/{world.outbox[2].item}", 3, created=True, repeated=True)
    )


def test_a_document_keeps_so_many_messages_and_says_when_there_is_room():
    world = World(max_messages=3)
    for number in range(3):
        world.write("put", "d", number, message_id=f"m{number}", remembered=True)
    refused(TooManyMessages, "message_limit", world, "put", "d", 4, message_id="m4", remembered=True)
    refused(MessageReused, "message-id-reused", world, "put", "d", 4, message_id="m0", remembered=True)
    assert isinstance(world.write("put", "d", 4), DocumentChange)
    with pytest.raises(TooManyMessages) as caught:
        world.write("put", "d", 5, message_id="m5", remembered=True)
    wait_ms = caught.value.retry_after_s * 1000
    assert MESSAGE_MS < wait_ms <= MESSAGE_MS + 15 * 60_000 + 1000
    refused(
        TooManyMessages,
        "message_limit",
        world,
        "put",
        "d",
        5,
        message_id="m5",
        remembered=True,
        now_ms=NOW + MESSAGE_MS,
    )
    world.write("put", "d", 5, message_id="m5", remembered=True, now_ms=NOW + wait_ms)
    assert world.head is not None
    assert [count for _, count in world.head.messages] == [1]


bodies = st.recursive(
    st.none() | st.integers(0, 3) | st.text(max_size=2),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "id"]), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=5,
)


class CollectionMachine(RuleBasedStateMachine):
    """Random writes to a collection; the model is a dictionary of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model: dict[str, Any] | None = None
        self.accepted = 0
        self.posted: list[str] = []

    @rule(item=st.sampled_from("xyz"), body=bodies)
    def put(self, item, body):
        if not isinstance(body, dict):
            refused(InvalidDocument, "element-not-object", self.world, "put", f"c~/{item}", body)
            return
        self.world.write("put", f"c~/{item}", body)
        self.model = (self.model or {}) | {item: without_nulls(body) | {"id": item}}
        self.accepted += 1

    @rule(item=st.sampled_from("xyz"), body=st.dictionaries(st.sampled_from("ab"), bodies, max_size=2))
    def patch(self, item, body):
        if self.model is None or item not in self.model:
            refused(DocumentNotFound, "not_found", self.world, "patch", f"c~/{item}", body)
            return
        self.world.write("patch", f"c~/{item}", body)
        self.model[item] = without_nulls(merge(self.model[item], body))
        self.accepted += 1

    @rule(item=st.sampled_from("xyz"))
    def delete(self, item):
        if self.model is None or item not in self.model:
            refused(DocumentNotFound, "not_found", self.world, "delete", f"c~/{item}")
            return
        self.world.write("delete", f"c~/{item}")
        del self.model[item]
        self.accepted += 1

    @rule(now_ms=st.integers(0, 2 * NOW))
    def post(self, now_ms):
        made = self.world.write("post", "c~", {"a": 1}, now_ms=now_ms)
        assert isinstance(made, DocumentChange)
        assert not self.posted or made.place.item.encode() > self.posted[-1].encode()
        self.posted.append(made.place.item)
        self.model = (self.model or {}) | {made.place.item: {"a": 1, "id": made.place.item}}
        self.accepted += 1

    @rule()
    def delete_all(self):
        if self.model is None:
            refused(DocumentNotFound, "not_found", self.world, "delete", "c~")
            return
        self.world.write("delete", "c~")
        self.model = None
        self.accepted += 1

    @invariant()
    def the_state_is_the_model(self):
        head = self.world.head
        assert [one.revision for one in self.world.outbox] == list(range(1, self.accepted + 1))
        assert {item: decode_body(row.body) for item, row in self.world.rows.items()} == (self.model or {})
        if head is not None:
            assert head.revision == self.accepted
            assert head.deleted is (self.model is None)
            assert head.count == len(self.model or {})

    @invariant()
    def events_lead_to_the_state(self):
        """Whoever follows the feed knows what is stored."""
        state: dict[str, Any] = {}
        for transaction in self.world.outbox:
            event = decode_body(transaction.event)
            place = parse_path(event["path"])
            if place.kind == "collection":
                state.clear()
            elif event["method"] == "feed:put":
                state[place.item] = event["body"]
            elif event["method"] == "feed:patch":
                state[place.item] = without_nulls(merge(state[place.item], event["body"]))
            else:
                del state[place.item]
        assert state == {item: decode_body(row.body) for item, row in self.world.rows.items()}


TestCollection = CollectionMachine.TestCase


def test_a_transaction_says_where_it_lies():
    world = World()
    world.write("put", "a/b", 1)
    assert TransactionId.parse(world.outbox[0].id).uri == "a/b"
    assert msgspec.json.decode(world.outbox[0].event)["headers"]["transactionId"] == world.outbox[0].id
