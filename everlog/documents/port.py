"""What a store of documents is. Implemented by `everlog.documents.sqlite` (one file) and `…cassandra`.

The rules that every implementation keeps:

1. `accept` stores the outbox rows before the content, and the content only if the document is still at the expected
   revision: of two writers one loses, and every accepted revision has its outbox row. All of a call is accepted, or
   none.
2. An outbox row is abandoned only after its write can no longer happen.
3. A message is stored if and only if its write is, by the same step, and stays for a day. No other method sees it.
4. An index entry is a function of the element's newest content, whatever the order in which updates arrive. Where it
   belongs is found out before anything is locked: an element that is written meanwhile is left to that write's update.
5. A row with an instant to be deleted at is named by `expiring` from before it is there until after it is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from everlog.documents.collections import CollectionsPage, PrefixRange
from everlog.documents.ids import TransactionId
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.messages import StoredMessage
from everlog.documents.model import DocumentChange, DocumentHead, DocumentRow, DocumentTransaction
from everlog.documents.nodes import NodeTable
from everlog.documents.paths import DocumentPlace
from everlog.documents.query_plan import IndexRange
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck, SchemaKey, StoredCheck
from everlog.documents.unshown import UnshownTable

MAX_STEP_BYTES = 256 * 1024
ViewStatus = Literal["filling", "checking", "ready"]


class DocumentState(NamedTuple):
    """What a write is decided on."""

    head: DocumentHead | None
    row: DocumentRow | None
    message: StoredMessage | None = None


class BatchState(NamedTuple):
    """What several writes are decided on: of the elements and the messages that they name, those that are there."""

    head: DocumentHead | None
    rows: Mapping[str, DocumentRow]
    messages: Mapping[str, StoredMessage] = MappingProxyType({})


class WaitingTransaction(NamedTuple):
    """An outbox row that is not completed, without its event."""

    uri: str
    uuid: str
    revision: int


class PendingIndex(NamedTuple):
    """An index that is being built or deleted."""

    uri: str
    definition: Index


class DocumentView(NamedTuple):
    """A read-only collection that shows what matches a template. `filled`: also what was there before it.

    `recheck`: if set, every element of it is to be compared with its source. `unshown`: how many elements match and are
    set aside; only where one view was asked for.
    """

    uri: str
    template: str
    filter: str | None
    filled: bool = False
    recheck: str | None = None
    unshown: int | None = None

    @property
    def status(self) -> ViewStatus:
        return "filling" if not self.filled else "checking" if self.recheck else "ready"

    def shows_as(self, other: DocumentView) -> bool:
        """Whether the two are defined alike."""
        return self[:3] == other[:3]


class TemplateIndex(NamedTuple):
    """An index that every matching collection gets at its next write; the definition is JSON."""

    index_id: str
    template: str
    definition: str


class PendingWrite(NamedTuple):
    """A write that indexes may not know yet: of an element, or of the whole collection, which it may have deleted."""

    revision: int
    item: str
    ends_collection: bool


class FoundElement(NamedTuple):
    """A row of a source: its key there, and the body."""

    key: Any
    body: str


class StoredElement(NamedTuple):
    """An element of a collection as it is stored, with the revision of its last write."""

    item: str
    body: str
    revision: int


class Batch(NamedTuple):
    """Rows in the order of the source; `more`: whether some may follow before the end of the range."""

    entries: list[FoundElement]
    more: bool


class ExpiringRow(NamedTuple):
    """A row that has this instant, or had it: when it is deleted, and where it is."""

    expires_ms: int
    uri: str
    item: str


Locate = Callable[[Index, Sequence[str]], Awaitable[list[bytes | None]]]
"""Where bodies belong in an index; None: its filter leaves one out. May raise InvalidDocument, and may take long."""


class DocumentStore(ABC):
    """Documents, collections, their outbox and their indexes."""

    @abstractmethod
    async def load(
        self, place: DocumentPlace, *, message_id: str | None = None, settled: bool = False
    ) -> DocumentState:
        """The document, the body at this place, and the message of this id, all of one moment.

        `settled`: after any write under way has ended, either way.
        """

    @abstractmethod
    async def load_rows(self, uri: str, items: Collection[str], message_ids: Collection[str] = ()) -> BatchState:
        """The document, the bodies of these items, and the messages of these ids, all of one moment."""

    @abstractmethod
    async def accept(self, *changes: DocumentChange) -> bool:
        """Store a write, or several of one document that follow on each other, all or none.

        False, and nothing of it is visible, if the document is no longer at the first one's `expected`. Raises
        Unreachable if the outcome is unknown; then `load(…, settled=True)` settles it.
        """

    @abstractmethod
    async def add_transaction(self, transaction: DocumentTransaction) -> None:
        """An outbox row alone: what is left of a write that ended between its two steps."""

    @abstractmethod
    async def transaction(self, transaction_id: TransactionId) -> DocumentTransaction | None:
        """One outbox row."""

    @abstractmethod
    async def pending(self, uri: str, *, limit: int) -> list[DocumentTransaction]:
        """Accepted and not completed, by revision, the lowest first."""

    @abstractmethod
    async def pending_writes(self, uri: str) -> list[PendingWrite]:
        """All of them, without events. What is accepted and not among them is in all indexes that are ready."""

    @abstractmethod
    async def complete(self, uri: str, transactions: Sequence[DocumentTransaction], now_ms: int) -> None:
        """Note that the events are out."""

    @abstractmethod
    def incomplete(
        self, first_quantum: int, last_quantum: int, partitions: Collection[int] | None = None
    ) -> AsyncIterator[list[WaitingTransaction]]:
        """All outbox rows of these minutes that are not completed, accepted or not; of some partitions, or of all."""

    @abstractmethod
    async def abandon(self, waiting: WaitingTransaction, now_ms: int) -> bool:
        """Complete an outbox row without an event if its write did not happen and no longer can."""

    @abstractmethod
    async def forget(self, before_ms: int, *, limit: int = 1000) -> int:
        """Remove outbox rows that were completed before this time; how many. Called again while some are left."""

    @abstractmethod
    async def forget_messages(self, before_ms: int, *, limit: int = 1000) -> int:
        """Remove messages that are older than this time; how many. Called again while some are left."""

    @abstractmethod
    async def elements(self, uri: str, where: IndexRange, *, reverse: bool, limit: int, max_bytes: int) -> Batch:
        """Elements of a collection by their ids."""

    @abstractmethod
    async def elements_after(
        self, uri: str, after: str, *, limit: int, max_bytes: int = MAX_STEP_BYTES
    ) -> list[StoredElement]:
        """The next elements of a collection above an id, with their revisions: none at its end, else at least one, and
        no more once they are that large together.
        """

    @abstractmethod
    async def rows(self, uri: str, items: Sequence[str]) -> list[FoundElement]:
        """Some elements as they are now; those that are there."""

    @abstractmethod
    async def count_others(self, uri: str, index: Index, items: Sequence[str]) -> int | None:
        """How many elements an index holds besides these; None if the store does not count."""

    @abstractmethod
    async def entries(
        self, uri: str, index: Index, where: IndexRange, *, reverse: bool, limit: int, max_bytes: int
    ) -> Batch:
        """Elements of an index by their keys."""

    @abstractmethod
    async def indexes(self, uri: str) -> list[Index]:
        """The indexes of a collection in the order of their ids, whatever their status."""

    @abstractmethod
    async def create_index(self, uri: str, index: Index) -> bool:
        """Define an index; False if there is one with this id."""

    @abstractmethod
    async def mark_index(self, uri: str, index: Index, status: IndexStatus, reason: str | None = None) -> bool:
        """Change the status of this very definition; False if it is no longer there, or has that status."""

    @abstractmethod
    async def build(self, uri: str, index: Index, locate: Locate, *, limit: int) -> bool:
        """Index the next elements after `built_to`; True if none was left: then the index is ready."""

    @abstractmethod
    async def cut(self, uri: str, every: int) -> list[str]:
        """Every n-th id of a collection's elements, in order: where work on it may be divided."""

    @abstractmethod
    async def build_part(
        self, uri: str, index: Index, locate: Locate, *, after: str, to: str | None, limit: int
    ) -> str | None:
        """Index the next elements with `after < id <= to`; the last of them, None if none was left.

        Parts may be built by several tasks at once, and twice. When all are done, the job calls `finish`.
        """

    @abstractmethod
    async def finish(self, uri: str, index: Index, revision: int) -> bool:
        """The index is ready, and as new as this revision; False if it was no longer being built."""

    @abstractmethod
    async def update_index(
        self, uri: str, index: Index, transactions: Sequence[DocumentTransaction], locate: Locate, revision: int
    ) -> None:
        """Bring the entries of all elements that these writes touched up to date, and the index to this revision."""

    @abstractmethod
    async def drop_index(self, uri: str, index: Index, *, limit: int) -> bool:
        """Remove entries of a deleted index; True if none was left: then the definition is gone too."""

    @abstractmethod
    async def pending_indexes(self) -> list[PendingIndex]:
        """All indexes that are being built or deleted."""

    @abstractmethod
    async def checkpoints(self) -> dict[int, int]:
        """The minute up to which nothing is left to recover, by partition; of those that have one."""

    @abstractmethod
    async def save_checkpoints(self, quanta: Mapping[int, int]) -> None:
        """None of them moves back."""

    @abstractmethod
    def places(self, prefix: str) -> AsyncIterator[list[DocumentPlace]]:
        """Where something is stored, of all documents and collections whose uris begin like this. In any order."""

    @abstractmethod
    async def collections(self, where: PrefixRange, *, limit: int) -> CollectionsPage:
        """Collections that are there, in the order of their paths; at most so many are read."""

    @abstractmethod
    async def views(self) -> list[DocumentView]:
        """All views."""

    @abstractmethod
    async def put_view(self, view: DocumentView) -> bool:
        """Define a view; False if its uri is a view already."""

    @abstractmethod
    async def mark_filled(self, uri: str) -> None:
        """The view shows what was there before it."""

    @abstractmethod
    async def recheck_view(self, uri: str, request: str, *, refill: bool = False) -> None:
        """Every element of the view is to be compared with its source; `refill`: and what may be missing is shown."""

    @abstractmethod
    async def mark_checked(self, uri: str, request: str) -> None:
        """They are, unless there is a newer request."""

    @abstractmethod
    async def delete_view(self, uri: str) -> bool:
        """False if there is none."""

    @abstractmethod
    async def template_indexes(self) -> list[TemplateIndex]:
        """All template indexes."""

    @abstractmethod
    async def put_template_index(self, template: TemplateIndex) -> bool:
        """False if the id is taken."""

    @abstractmethod
    async def delete_template_index(self, index_id: str) -> bool:
        """False if there is none."""

    @abstractmethod
    def unshown_table(self) -> UnshownTable:
        """What views cannot show."""

    @abstractmethod
    def expiring(self, now_ms: int) -> AsyncIterator[list[ExpiringRow]]:
        """All rows whose instant is reached, page by page. It may name rows whose instant is another one by now."""

    @abstractmethod
    async def forget_expiring(self, rows: Sequence[ExpiringRow]) -> None:
        """Name them no longer."""

    @abstractmethod
    async def schema_keys(self) -> list[SchemaKey]:
        """All schemas without their texts, by id."""

    @abstractmethod
    async def schema(self, schema_id: str) -> DocumentSchema | None:
        """One schema."""

    @abstractmethod
    async def put_schema(self, schema: DocumentSchema) -> bool:
        """Define or replace a schema; whether it is new."""

    @abstractmethod
    async def delete_schema(self, schema_id: str) -> bool:
        """False if there is none. Its check goes with it."""

    @abstractmethod
    async def schema_checks(self) -> list[StoredCheck]:
        """The newest check of each schema that was checked."""

    @abstractmethod
    async def schema_check(self, schema_id: str) -> StoredCheck | None:
        """The newest check of a schema."""

    @abstractmethod
    async def save_schema_check(self, check: SchemaCheck, beat: int, expected: int | None) -> bool:
        """Store a check at a new beat if it is at the expected one; None: if there is none of its schema."""

    @abstractmethod
    def node_table(self) -> NodeTable:
        """The servers that share these documents."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun, and close files and connections."""
