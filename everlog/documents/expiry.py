"""Times to live: a document or an element that was written with one is deleted when it is over.

The instant stands in the row of the body, written by the same step, and so a write without one takes it away. Nothing
ends by itself: the expirer deletes what has reached its instant as a client would, with the row's own entity tag as a
condition. So of a write and an expiry one wins, and indexes, views, live queries, feeds and histories learn of it as of
any deletion. Until it is deleted, a document can still be read.

Where rows with an instant are is told by the store (`expiring`), which may name more than there are, never less: each
is looked at before it is deleted. A crash at any moment leaves the row and what names it, or neither.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from everlog.documents.ids import etag_of
from everlog.documents.model import DocumentCommand, Preconditions, WrittenDocument, check_ttl
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentState, ExpiringRow
from everlog.errors import DocumentNotFound, EverlogError, PreconditionFailed
from everlog.runtime.clock import Clock
from everlog.runtime.failpoints import failpoint

log = logging.getLogger("everlog.documents")

EXPIRY = "everlog.expiry"
"""What the events of deletions that an expiry makes carry as `by`."""
INTERVAL_S = 1.0
STALE_S = 3600.0
"""How long what names a row is kept after its instant, if the row says otherwise: its write may still be under way."""
_SECONDS = re.compile(r"[0-9]{1,10}")


class ExpiredDocuments(msgspec.Struct):
    """What a pass did. `failed` ones are tried again by the next pass."""

    expired: int = 0
    failed: int = 0


class ExpiryStore(Protocol):
    """What an expirer needs of a store."""

    async def load(self, place: DocumentPlace) -> DocumentState: ...
    def expiring(self, now_ms: int) -> AsyncIterator[list[ExpiringRow]]: ...
    async def forget_expiring(self, rows: Sequence[ExpiringRow]) -> None: ...


def parse_ttl(text: str | None) -> int | None:
    """The same as a header has it."""
    if text is None:
        return None
    return check_ttl(int(text) if _SECONDS.fullmatch(text.strip()) else text)


class DocumentExpirer:
    """Deletes what has reached its instant; any number of them may be at work at once."""

    def __init__(
        self,
        store: ExpiryStore,
        delete: Callable[[DocumentCommand], Awaitable[WrittenDocument]],
        make_id: Callable[[], str],
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._delete = delete
        self._make_id = make_id
        self._clock = clock

    async def run_once(self) -> ExpiredDocuments:
        """One pass over all that is due now. What cannot be deleted does not stop the others."""
        total = ExpiredDocuments()
        async for page in self._store.expiring(self._clock.now_ms()):
            done: list[ExpiringRow] = []
            for one in page:
                try:
                    deleted = await self._expire(one)
                except EverlogError as error:
                    total.failed += 1
                    path = DocumentPlace(one.uri, one.item).path
                    log.warning("%s has expired and cannot be deleted yet: %s", path, error, extra={"key": one.uri})
                    continue
                total.expired += deleted
                if deleted or one.expires_ms + STALE_S * 1000 < self._clock.now_ms():
                    done.append(one)
            await self._store.forget_expiring(done)
        return total

    async def _expire(self, one: ExpiringRow) -> bool:
        """Delete a row if it still has this instant."""
        place = DocumentPlace(one.uri, one.item)
        row = (await self._store.load(place)).row
        if row is None or row.expires_ms != one.expires_ms:
            return False
        failpoint("documents.expiring")
        made, tag = self._make_id(), etag_of(row.revision)
        try:
            await self._delete(
                DocumentCommand(
                    "delete",
                    place,
                    message_id=made,
                    correlation_id=made,
                    preconditions=Preconditions.of(tag, None),
                    by=EXPIRY,
                )
            )
        except (DocumentNotFound, PreconditionFailed):
            return False  # it was written, or deleted, meanwhile
        failpoint("documents.expired")
        return True
