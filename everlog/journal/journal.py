"""The journals of one topic: what users call."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

from everlog.core.actions import Delete, Mark, Purge
from everlog.core.events import Event, EventRecord
from everlog.core.head import Head, exists
from everlog.core.values import MAX_SEQ_NR, Position, SeqNr, SeqRange, check_id
from everlog.errors import InvalidInput, InvalidPosition, InvalidRange, StorageFailed, TopicRetired
from everlog.errors.storage import needs_storage
from everlog.journal.damaged_log import DamagedLog
from everlog.journal.parts import Parts, parts_over
from everlog.journal.reader import Ref, Span
from everlog.journal.snapshots import LocalSnapshots, Recovered, Snapshots
from everlog.journal.topic_registry import find_topic, is_retired, pin_topic
from everlog.journal.writer import ANSWER_S, LOOK_S, Draft
from everlog.log.port import LogTopic

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,200}")

After = Position | str | None


class Token(Position):
    """The position of an append, which also knows the seqNrs that it got.

    >>> Token("orders", 0, 7, range=SeqRange(1, 2)).range.last
    2
    """

    range: SeqRange

    def __new__(cls, topic: str, partition: int, offset: int, *, range: SeqRange) -> Token:  # noqa: A002
        token = Position.__new__(cls, topic, partition, offset)
        token.range = range
        return token


def check_topic(topic: str) -> str:
    """A topic's name as people use it."""
    if not _TOPIC.fullmatch(topic):
        raise InvalidInput(f"a topic's name is letters, digits, '.', '_' and '-', at most 200; not {topic!r}")
    return topic


class Journal(ABC):
    """The journals of one topic, by id: `log.journal("orders")`."""

    topic: str
    snapshots: Snapshots

    def append(
        self,
        journal_id: str,
        events: Sequence[Event] | Event,
        *,
        expected: int | None = None,
        expire_after: timedelta | None = None,
        metadata: Any = None,
        header_metadata: Any = None,
        headers: Mapping[str, str] | None = None,
        verdict: bool = True,
        append_id: str | None = None,
    ) -> Coroutine[Any, Any, Token]:
        """Append events as one unit and return their place in the log.

        With `expected` (0: absent) the append wins only if the journal is at that seqNr, else it raises Conflict.
        Events may carry their own seqNrs. With neither, they go wherever the journal ends. `verdict=False` returns
        as soon as the log has the record. After OutcomeUnknown, repeat the call with its `append_id`.
        """
        draft = Draft(
            events=[events] if isinstance(events, Event) else list(events),
            expected=expected,
            expire_after=expire_after,
            metadata=metadata,
            header_metadata=header_metadata,
            headers=headers,
        )
        return self._append(journal_id, draft, verdict, append_id)

    @abstractmethod
    async def _append(self, journal_id: str, draft: Draft, verdict: bool, append_id: str | None) -> Token:
        """Append a draft. What `append` hands on, without a coroutine in between."""

    async def read(
        self,
        journal_id: str,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
        after: After = None,
        strict: bool = False,
    ) -> AsyncIterator[EventRecord]:
        """The journal's events, page by page as they are asked for.

        `after`: only once this position is reached. `strict`: as of a record that this call writes into the log, so
        that the answer is right even if a server that was deposed a moment ago says where the log ends.
        """
        span = {"from_seq": from_seq, "to_seq": to_seq}
        async for page in self.read_pages(journal_id, **span, limit=limit, reverse=reverse, after=after, strict=strict):
            for event in page:
                yield event

    @abstractmethod
    def read_pages(
        self,
        journal_id: str,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
        after: After = None,
        strict: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        """Like `read`, a list of events at a time."""

    @abstractmethod
    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> int | None:
        """The journal's highest seqNr, also when its events are deleted; None if it does not exist."""

    @abstractmethod
    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        """Delete events up to `to`; None, and nothing written, if there is no journal."""

    @abstractmethod
    async def purge(self, journal_id: str) -> Position:
        """Remove the journal and its snapshots; a later append starts a new life at seqNr 1."""

    @abstractmethod
    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        """Write a record that changes nothing, for those who watch the log."""

    async def recover(self, journal_id: str) -> Recovered:
        """The newest snapshot, the events after it, and the seqNr that they lead to (0: no journal)."""
        snapshot = await self.snapshots.load(journal_id)
        first = 1 if snapshot is None else min(snapshot.seq_nr + 1, MAX_SEQ_NR)
        pointer = await self.pointer(journal_id)
        events = self.read(journal_id, from_seq=first, to_seq=max(pointer or 1, first))
        return Recovered(seq_nr=pointer or 0, snapshot=snapshot, events=events)

    @abstractmethod
    def keys(self, *, after: After = None) -> AsyncIterator[str]:
        """The ids of all journals that exist, each once: stored ones, and those only in the tail.

        `after`: only once this position is reached.
        """

    # What needs the log and the store themselves: a server does not hand these out.

    @property
    def parts(self) -> Parts:
        """The log, the store, and what reads and writes them."""
        raise needs_storage()

    @property
    def log_name(self) -> str:
        """The topic's name in the log."""
        raise needs_storage()

    async def head(self, journal_id: str, *, after: After = None, strict: bool = False) -> Head | None:
        """Everything known about the journal, as of now."""
        raise needs_storage()

    async def recent_keys(self, *, after: After = None) -> set[str]:
        """Ids with un-replicated records; whether they exist is for the fold to say."""
        raise needs_storage()

    async def ref(self, journal_id: str, *, create: bool = False) -> Ref | None:
        """The journal's place, or None while its topic does not exist."""
        raise needs_storage()


class LocalJournal(Journal):
    """The journals of one topic, on the log and the store."""

    __slots__ = ("log_name", "parts")  # plain attributes, in front of the properties of the base
    log_name: str
    parts: Parts

    def __init__(self, topic: str, parts: Parts) -> None:
        self.topic = check_topic(topic)
        self.log_name = parts.config.journal.topic_prefix + topic
        if not parts.config.journal.includes(self.log_name):
            raise InvalidInput(f"{self.log_name!r} is not one of [journal] topics: add it there")
        self.parts = parts
        self.snapshots = LocalSnapshots(self)
        self._opened: Ref | None = None
        self._retired = False
        self._looked = 0.0

    async def _append(self, journal_id: str, draft: Draft, verdict: bool, append_id: str | None) -> Token:
        ref = None if self._retired else self._at_hand(journal_id)
        if ref is None:
            ref = await self._ref_to_write(journal_id)
        appended = await self.parts.writer.append(ref, draft, verdict=verdict, append_id=append_id)
        return Token(self.topic, ref.partition, appended.offset, range=appended.range)

    async def read_pages(
        self,
        journal_id: str,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
        after: After = None,
        strict: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        span = SeqRange(from_seq, to_seq)
        if limit is not None and limit < 1:
            raise InvalidRange(f"limit must be at least 1, not {limit}")
        ref = await self.ref(journal_id)
        if ref is None:
            self._position(after)
            return
        wanted = Span(first=span.first, last=span.last, limit=limit, reverse=reverse)
        position = await self._from_where(journal_id, after, strict)
        async for page in self.parts.reader.read(ref, wanted, position):
            yield page

    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> int | None:
        head = await self.head(journal_id, after=after, strict=strict)
        return head.seq_nr if head is not None and exists(head) else None

    async def head(self, journal_id: str, *, after: After = None, strict: bool = False) -> Head | None:
        ref = await self.ref(journal_id)
        if ref is None:
            self._position(after)
            return None
        return (await self.parts.reader.view(ref, await self._from_where(journal_id, after, strict))).state

    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        SeqNr(to)
        pointer = await self.pointer(journal_id)
        ref = await self.ref(journal_id)
        if pointer is None or ref is None:
            return None
        origin = self.parts.origin
        action = Delete(to=min(pointer, to), origin=origin.host, version=origin.version, if_exists=True)
        return await self._produce(ref, action)

    async def purge(self, journal_id: str) -> Position:
        ref = await self._ref_to_write(journal_id)
        origin = self.parts.origin
        position = await self._produce(ref, Purge(origin=origin.host, version=origin.version))
        self.parts.writer.forget(ref)
        return position

    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        ref = await self._ref_to_write(journal_id)
        origin = self.parts.origin
        action = Mark(id=mark_id or self.parts.clock.new_id(), origin=origin.host, version=origin.version)
        return await self._produce(ref, action)

    async def _produce(self, ref: Ref, action: Delete | Purge | Mark) -> Position:
        ack, _ = await self.parts.writer.produce(ref, action)
        return Position(self.topic, ref.partition, ack.offset)

    async def keys(self, *, after: After = None) -> AsyncIterator[str]:
        if await self._open(create=False) is None:
            self._position(after)
            return
        recent = await self.recent_keys(after=after)
        async for page in self.parts.store.ids(self.log_name):
            for journal_id in page:
                if journal_id not in recent:
                    yield journal_id
        for journal_id in sorted(recent):
            if await self.pointer(journal_id, after=after) is not None:
                yield journal_id

    async def recent_keys(self, *, after: After = None) -> set[str]:
        position = self._position(after)
        found: set[str] = set()
        ref = await self._open(create=False)
        if ref is None:
            return found
        for partition in range(ref.topic.partitions):
            keys = await self.parts.reader.recent_keys(ref.log_topic, partition, position)
            found.update(key.decode() for key in keys if key and _is_text(key))
        return found

    async def ref(self, journal_id: str, *, create: bool = False) -> Ref | None:
        ref = self._at_hand(journal_id)
        if ref is not None:
            return ref
        opened = await self._open(create=create)
        return None if opened is None else opened.sibling(journal_id)

    def _at_hand(self, journal_id: str) -> Ref | None:
        """The journal's place, if its topic was looked at a moment ago."""
        opened = self._opened
        if opened is None or self.parts.clock.monotonic() - self._looked > LOOK_S:
            check_id(journal_id)  # before a topic is made for it
            return None
        return opened.sibling(journal_id)

    async def _ref_to_write(self, journal_id: str) -> Ref:
        """The journal's place; its topic is created if need be, unless it is retired."""
        ref = await self.ref(journal_id, create=True)
        assert ref is not None
        if self._retired:
            raise TopicRetired(self.topic)
        return ref

    async def _open(self, *, create: bool) -> Ref | None:
        """Find or create the topic, and pin what must never change about it. Of a retired one, what is left is read."""
        if self._opened is not None and not await self._retired_meanwhile():
            return self._opened
        log, store = self.parts.log, self.parts.store
        self._looked = self.parts.clock.monotonic()
        if await is_retired(store, self.log_name):
            return await self._open_retired()
        if create:
            found: LogTopic | None = await log.create_topic(self.log_name)
        else:
            found = await find_topic(log, store, self.log_name, self.topic)
        if found is None:
            return None
        topic = await pin_topic(store, found, self.parts.config, self.parts.clock)
        self._opened = Ref.of(found, topic, "", b"", self.topic)
        return self._opened

    async def _open_retired(self) -> Ref:
        """From now on this object reads what is left of the topic, and nothing can be written with it."""
        store = self.parts.store
        topic = next(topic for topic in await store.pinned() if topic.name == self.log_name)
        damaged = await DamagedLog.look(self.parts.log, store, topic, self.topic)
        self.parts = parts_over(self.parts, damaged)
        self._retired = True
        self._opened = Ref.of(damaged.log_topic, topic, "", b"", self.topic)
        return self._opened

    async def _retired_meanwhile(self) -> bool:
        """Look now and then. A store that does not answer must not hold up appends."""
        now = self.parts.clock.monotonic()
        if self._retired or now - self._looked <= LOOK_S:
            return False
        self._looked = now
        try:
            return await asyncio.wait_for(is_retired(self.parts.store, self.log_name), ANSWER_S)
        except (StorageFailed, TimeoutError):
            return False

    async def _from_where(self, journal_id: str, after: After, strict: bool) -> Position | None:
        """The position that a read must have reached; a strict read goes beyond a mark that it writes itself."""
        position = self._position(after)
        if not strict:
            return position
        mark = await self.mark(journal_id)
        beyond = position is not None and position.partition == mark.partition and position.offset > mark.offset
        return position if beyond else mark

    def _position(self, after: After) -> Position | None:
        if after is None:
            return None
        position = Position.parse(after) if isinstance(after, str) else after
        if position.topic != self.topic:
            raise InvalidPosition(f"{position} is a position of the topic {position.topic!r}, not of {self.topic!r}")
        return position


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
