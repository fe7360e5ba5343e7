"""Writes of documents: load the state, decide, store the decision if the document is still at that revision.

Writers of one process go one after the other; one of another process may be quicker: then it is decided anew. A write
whose outcome is unknown is looked up once, at the document itself, before WriteUnfinished says that it is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypedDict
from uuid import UUID

from everlog.config import DocumentsConfig
from everlog.documents.batch import BatchRequest, decide_batch
from everlog.documents.bodies import is_large
from everlog.documents.bulk import decide_each
from everlog.documents.bulk_run import Written
from everlog.documents.completer import Completer
from everlog.documents.ids import TransactionId
from everlog.documents.messages import repeat
from everlog.documents.model import (
    BodyCheck,
    DocumentChange,
    DocumentCommand,
    DocumentRow,
    WriteSettings,
    WrittenDocument,
    decide,
    written_by,
)
from everlog.documents.port import DocumentStore
from everlog.documents.schemas.registry import SchemaRegistry
from everlog.documents.workers import Workers
from everlog.errors import EverlogError, TooManyPending, Unreachable, WriteUnfinished
from everlog.runtime.clock import Clock
from everlog.runtime.failpoints import failpoint, pausepoint

MAX_CHARS_ON_LOOP = 32 * 1024  # of a stored body that a decision reads

Decided: TypeAlias = Sequence[DocumentChange | WrittenDocument | EverlogError]
"""What becomes of each write of a request: changes, that follow on each other, answers that it got before, refusals."""


class Decision(NamedTuple):
    """A decision on what was loaded, which does the same each time: bodies that it would store are checked on the way.

    `large`: it takes long, because bodies are large.
    """

    make: Callable[[BodyCheck], Decided]
    large: bool


class Circumstances(TypedDict):
    """What a decision depends on besides the command and what is stored."""

    now_ms: int
    entropy: int
    settings: WriteSettings


class WriterParts(Protocol):
    """What writes need of the open documents."""

    @property
    def store(self) -> DocumentStore: ...
    @property
    def completer(self) -> Completer: ...
    @property
    def schemas(self) -> SchemaRegistry: ...


def new_entropy(clock: Clock) -> int:
    """Random bits for an id."""
    return UUID(clock.new_id()).int


class DocumentWriter:
    """Carries out writes on whatever store is open."""

    def __init__(
        self,
        open_parts: Callable[[], Awaitable[WriterParts]],
        workers: Workers,
        *,
        clock: Clock,
        config: DocumentsConfig,
    ) -> None:
        self._open = open_parts
        self._workers = workers
        self._clock = clock
        self._timeout_s = config.request_timeout_s
        self._settings = WriteSettings(
            max_pending=config.max_pending,
            max_messages=config.max_messages,
            max_body_bytes=config.max_body_bytes,
            max_operations=config.max_operations,
            max_batch_bytes=config.max_batch_bytes,
        )

    async def batch(self, request: BatchRequest, message_id: str | None) -> Sequence[WrittenDocument]:
        """Carry out several writes of one document, all or none."""

        async def decision(store: DocumentStore) -> Decision:
            state, around = await store.load_rows(request.uri, request.items, request.message_ids), self._around()
            large = is_large(*[one.body for one in request.commands]) or _are_large(state.rows.values())
            return Decision(lambda check: decide_batch(*state, request, check=check, **around), large)

        return _all_written(await self._change(request.uri, message_id, decision))

    async def each(self, uri: str, commands: Sequence[DocumentCommand]) -> Sequence[Written]:
        """Carry out writes of one document, several at once, each for itself."""
        done: list[Written] = []
        deadline = self._clock.monotonic() + self._timeout_s
        while len(done) < len(commands):
            rest = commands[len(done) :]
            try:
                found = await self._change(uri, None, partial(self._decide_each, uri, rest))
            except EverlogError as error:
                found = [error] * len(rest)
            if isinstance(found[0], TooManyPending) and self._clock.monotonic() < deadline:
                try:
                    await (await self._open()).completer.complete(uri)
                    continue
                except EverlogError:
                    found = [found[0]] * len(rest)
            done += found
        return done

    async def _decide_each(self, uri: str, commands: Sequence[DocumentCommand], store: DocumentStore) -> Decision:
        items = {command.place.item for command in commands}
        ids = {command.message_id for command in commands if command.remembered}
        state, around = await store.load_rows(uri, items, ids), self._around()
        large = is_large(*[command.body for command in commands]) or _are_large(state.rows.values())
        return Decision(lambda check: decide_each(*state, commands, check=check, **around), large)

    async def apply(self, command: DocumentCommand) -> WrittenDocument:
        """Carry out one write."""
        message_id = command.message_id if command.remembered else None

        async def decision(store: DocumentStore) -> Decision:
            state, around = await store.load(command.place, message_id=message_id), self._around()
            large = is_large(command.body) or (state.row is not None and _are_large([state.row]))
            return Decision(lambda check: [decide(*state, command, check=check, **around)], large)

        (written,) = _all_written(await self._change(command.place.uri, message_id, decision))
        return written

    def _around(self) -> Circumstances:
        """What a decision depends on besides what is stored."""
        return {"now_ms": self._clock.now_ms(), "entropy": new_entropy(self._clock), "settings": self._settings}

    async def _change(
        self, uri: str, message_id: str | None, decision: Callable[[DocumentStore], Awaitable[Decision]]
    ) -> list[Written]:
        """Decide and accept, again if another writer was quicker. Writers of one process go one after the other."""
        parts = await self._open()
        deadline = self._clock.monotonic() + self._timeout_s
        await self._workers.take(uri)
        try:
            while True:
                make, large = await decision(parts.store)
                decided = await parts.schemas.book.decided(make, large=large, timeout_s=self._timeout_s)
                changes = [one for one in decided if isinstance(one, DocumentChange)]
                if not changes:
                    return [one for one in decided if not isinstance(one, DocumentChange)]
                failpoint("documents.decided")
                await pausepoint("documents.decided", uri)
                if await self._accept(parts.store, message_id, changes):
                    break
                if self._clock.monotonic() > deadline:
                    raise WriteUnfinished(
                        f"{uri}: other writers were quicker for {self._timeout_s:g} s; nothing was stored, try again",
                        message_id=message_id or "",
                    )
        finally:
            self._workers.end(uri)
        failpoint("documents.accepted")
        parts.completer.kick(uri)
        return [written_by(one) if isinstance(one, DocumentChange) else one for one in decided]

    async def _accept(self, store: DocumentStore, message_id: str | None, changes: Sequence[DocumentChange]) -> bool:
        """Store the changes. If the outcome is unknown, look once more; if it still is, raise WriteUnfinished."""
        try:
            return await store.accept(*changes)
        except Unreachable as error:
            last = changes[-1]
            try:
                await store.load(last.place, settled=True)
                found = await store.transaction(TransactionId.parse(last.transaction.id))
                if found is not None and found.accepted:
                    return True
                if found is not None:
                    return False
            except EverlogError:
                pass
            raise WriteUnfinished(
                f"{last.place.path}: {error}; the write may or may not have happened: {repeat(message_id)}",
                message_id=message_id or "",
                transaction_id=last.transaction.id,
            ) from error


def _are_large(rows: Iterable[DocumentRow]) -> bool:
    return any(len(row.body) > MAX_CHARS_ON_LOOP for row in rows)


def _all_written(found: Sequence[Written]) -> list[WrittenDocument]:
    """The answers of a request that is refused as a whole if it is refused."""
    written = [one for one in found if isinstance(one, WrittenDocument)]
    assert len(written) == len(found)
    return written
