"""The event of a write goes into the log in journal format: seqNr = revision, each revision once and in order."""

from __future__ import annotations

from typing import Protocol

from everlog.core.events import CheckedJson, Event
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import DocumentPlace
from everlog.errors import Conflict, EverlogError
from everlog.journal.journal import Journal


class NotPublished(EverlogError):
    """The event did not go out; it will be tried again."""

    retriable = True


class Publisher(Protocol):
    """Where events go."""

    async def publish(self, transaction: DocumentTransaction) -> None:
        """Returns when the event is durable, by this call or an earlier one. Raises if that is not certain."""


class JournalPublisher:
    """Appends with `expected = revision - 1`: of two nodes one wins, and nothing comes twice or out of order."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def publish(self, transaction: DocumentTransaction) -> None:
        in_collection = DocumentPlace(transaction.uri).in_collection
        # A document's numbers are kept however large they are, and its levels are bounded by its own limit.
        event = Event(CheckedJson(transaction.event), tags={transaction.uri} if in_collection else ())
        try:
            await self._journal.append(transaction.uri, event, expected=transaction.revision - 1)
        except Conflict as conflict:
            if conflict.actual >= transaction.revision:
                return  # it is out already
            raise NotPublished(
                f"{transaction.uri}: revision {transaction.revision} cannot go out before {conflict.actual + 1}"
            ) from conflict
