"""The journals of one topic: what users call."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any, NamedTuple

from everlog.core.actions import Delete, Mark, Purge
from everlog.core.arguments import check_append_id, check_flag, check_text, check_whole
from everlog.core.events import Event, EventRecord
from everlog.core.head import Head, exists
from everlog.core.values import MAX_SEQ_NR, Position, SeqNr, SeqRange, Version, check_id, check_position, shown
from everlog.errors import InvalidInput, InvalidPosition, Overtaken, StorageFailed, SystemTopic, TopicRetired
from everlog.errors.storage import needs_storage
from everlog.journal.damaged_log import DamagedLog
from everlog.journal.parts import JournalParts, parts_over
from everlog.journal.reader import MAX_TRIES, Pin, Ref, Span, check_pin
from everlog.journal.snapshots import LocalSnapshots, Recovered, Snapshots
from everlog.journal.topic_registry import find_topic, is_retired, pin_topic
from everlog.journal.writer import ANSWER_S, LOOK_S, Draft, append_id_of, check_draft
from everlog.log.port import LogTopic
from everlog.runtime.pages import each
from everlog.store.port import Snapshot

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,200}")

After = Position | str | None


class Token(Position):
    """The position of an append, which also knows the seqNrs that it got, and the life of the journal.

    `life` is None if the append did not wait for its verdict.

    >>> Token("orders", 0, 7, range=SeqRange(1, 2)).version
    2
    """

    range: SeqRange
    life: str | None

    def __new__(
        cls,
        topic: str,
        partition: int,
        offset: int,
        *,
        range: SeqRange,  # noqa: A002
        life: str | None = None,
    ) -> Token:
        token = Position.__new__(cls, topic, partition, offset)
        token.range = range
        token.life = life
        return token

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Token, range=self.range, life=self.life), tuple(self)

    @property
    def version(self) -> int:
        """Where the journal is after this append: what a next one may expect."""
        return self.range.last if self.life is None else Version(self.range.last, self.life)


class JournalExpiry(NamedTuple):
    """When a journal expires: the day (UTC) and the moment. One that was taken over may know the day only."""

    day: date | None = None
    at_ms: int | None = None


def check_topic(topic: str) -> str:
    """A topic's name as people use it."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise InvalidInput(f"a topic's name is letters, digits, '.', '_' and '-', at most 200; not {shown(topic)}")
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
        expected: int | Token | None = None,
        expire_after: timedelta | None = None,
        metadata: Any = None,
        header_metadata: Any = None,
        headers: Mapping[str, str] | None = None,
        verdict: bool = True,
        append_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Coroutine[Any, Any, Token]:
        """Append events as one unit and return their place in the log.

        With `expected` (0: absent) the append wins only if the journal is at that seqNr, else it raises Conflict. What
        `pointer` and `recover` say, and a token of an earlier append, also name the life that the journal must still be
        in; a plain number means the present one. Events may carry their own seqNrs. With neither, they go wherever the
        journal ends. `verdict=False` returns as soon as the log has the record. After OutcomeUnknown, repeat the call
        with its `append_id`; or give each append an `idempotency_key` of your own, with `expected`: repeated with the
        same key, also after a crash or a cancellation, it is stored once.
        """
        try:
            draft = Draft(
                events=[events] if isinstance(events, Event) else _listed(events),
                expected=self._version(expected) if isinstance(expected, Token) else expected,
                expire_after=expire_after,
                metadata=metadata,
                header_metadata=header_metadata,
                headers=headers,
            )
            if idempotency_key is not None:
                if append_id is not None:
                    raise InvalidInput("give an idempotency_key or an append_id, not both")
                check_draft(draft)
                append_id = append_id_of(idempotency_key, draft)
        except InvalidInput as error:
            return _refuse(error)
        return self._append(journal_id, draft, verdict, append_id)

    def _version(self, token: Token) -> int:
        if token.topic != self.topic:
            raise InvalidPosition(f"{token} is a position of the topic {token.topic!r}, not of {self.topic!r}")
        return token.version

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
    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> Version | None:
        """The journal's highest seqNr, also when its events are deleted; None if it does not exist.

        It also knows the journal's life: as `expected=` it holds in that life only.
        """

    @abstractmethod
    async def expiry(self, journal_id: str, *, after: After = None, strict: bool = False) -> JournalExpiry | None:
        """When the journal expires; None if it does not exist."""

    @abstractmethod
    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        """Delete events up to `to`; None, and nothing written, if there is no journal.

        What `pointer` and `recover` say counts in its own life only: of one that is over, nothing is left to delete.
        """

    @abstractmethod
    async def purge(self, journal_id: str) -> Position:
        """Remove the journal and its snapshots; a later append starts a new life at seqNr 1."""

    @abstractmethod
    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        """Write a record that changes nothing, for those who watch the log."""

    async def recover(self, journal_id: str) -> Recovered:
        """The newest snapshot, the events after it, and the seqNr that they lead to (0: no journal).

        All of one moment. Where some of these events are deleted before they are read, `events` raises Overtaken:
        recover again. Of a halted journal it raises JournalHalted at the end, as every read does.
        """
        pin, snapshot = await self.pinned(journal_id)
        first = 1 if snapshot is None else snapshot.seq_nr + 1
        pages = self.pinned_pages(journal_id, pin, from_seq=first)
        return Recovered(seq_nr=Version(pin.seq_nr, pin.life), snapshot=snapshot, events=each(pages))

    @abstractmethod
    async def pinned(self, journal_id: str) -> tuple[Pin, Snapshot | None]:
        """The journal as it is now, and the newest snapshot of it."""

    @abstractmethod
    def pinned_pages(
        self,
        journal_id: str,
        pin: Pin,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        """The events that the journal had then, a list at a time; Overtaken once some of them are deleted."""

    @abstractmethod
    def keys(self, *, after: After = None) -> AsyncIterator[str]:
        """The ids of all journals that exist, each once: stored ones, and those only in the tail.

        `after`: only once this position is reached.
        """

    # What needs the log and the store themselves: a server does not hand these out.

    @property
    def parts(self) -> JournalParts:
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
    parts: JournalParts
    snapshots: LocalSnapshots

    def __init__(self, topic: str, parts: JournalParts, *, owned: bool = False) -> None:
        """`owned`: by the part that makes this object; only such a one writes into a topic of the system."""
        self.topic = check_topic(topic)
        self._closed = not owned and parts.config.is_system_topic(topic)
        self.log_name = parts.config.journal.topic_prefix + topic
        if not parts.config.journal.includes(self.log_name):
            raise InvalidInput(f"{self.log_name!r} is not one of [journal] topics: add it there")
        self.parts = parts
        self.snapshots = LocalSnapshots(self)
        self._opened: Ref | None = None
        self._retired = False
        self._looked = 0.0

    async def _append(self, journal_id: str, draft: Draft, verdict: bool, append_id: str | None) -> Token:
        if append_id is not None:
            check_append_id(append_id)
        check_flag("verdict", verdict)
        self.check_open()
        ref = None if self._retired else self._at_hand(journal_id)
        if ref is None:
            self.parts.writer.rehearse(draft)  # before a topic is made for it
            ref = await self._ref_to_write(journal_id)
        appended = await self.parts.writer.append(ref, draft, verdict=verdict, append_id=append_id)
        return Token(self.topic, ref.partition, appended.offset, range=appended.range, life=appended.life)

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
        if limit is not None:
            check_whole("limit", limit, min_value=1)
        check_flag("reverse", reverse)
        check_flag("strict", strict)
        ref = await self.ref(journal_id)
        if ref is None:
            self._position(after)
            return
        wanted = Span(first=span.first, last=span.last, limit=limit, reverse=reverse)
        position = await self._from_where(journal_id, after, strict)
        async for page in self.parts.reader.read(ref, wanted, position):
            yield page

    async def pinned(self, journal_id: str) -> tuple[Pin, Snapshot | None]:
        for _ in range(MAX_TRIES):
            head = await self.head(journal_id)
            pin = Pin.of(head)
            snapshot, is_outdated = await self.snapshots.newest(journal_id, head)
            if pin.delete_to <= (0 if snapshot is None else snapshot.seq_nr):
                return pin, snapshot
            # No snapshot of what was deleted: there is none, unless one went between these two looks.
            if not is_outdated:
                now = Pin.of(await self.head(journal_id))
                if (now.life, now.delete_to) == (pin.life, pin.delete_to):
                    return pin, snapshot
        raise Overtaken(f"{journal_id!r} was changed {MAX_TRIES} times while its snapshots were read: read again")

    async def pinned_pages(
        self,
        journal_id: str,
        pin: Pin,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        check_pin(pin)
        ref = await self.ref(journal_id)
        nothing = from_seq > to_seq or (from_seq > pin.seq_nr and pin.halted_at is None)
        if ref is None or nothing:
            return
        wanted = Span(first=from_seq, last=to_seq, limit=limit, reverse=reverse)
        async for page in self.parts.reader.read(ref, wanted, pin=pin):
            yield page

    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> Version | None:
        head = await self.head(journal_id, after=after, strict=strict)
        return Version(head.seq_nr, head.record_id) if head is not None and exists(head) else None

    async def expiry(self, journal_id: str, *, after: After = None, strict: bool = False) -> JournalExpiry | None:
        head = await self.head(journal_id, after=after, strict=strict)
        return JournalExpiry(head.expire_on, head.expire_at) if head is not None and exists(head) else None

    async def head(self, journal_id: str, *, after: After = None, strict: bool = False) -> Head | None:
        check_flag("strict", strict)
        ref = await self.ref(journal_id)
        if ref is None:
            self._position(after)
            return None
        return (await self.parts.reader.view(ref, await self._from_where(journal_id, after, strict))).state

    def check_open(self) -> None:
        """Raise SystemTopic unless callers may write here; it looks at the name alone, before a topic is made."""
        if self._closed:
            raise SystemTopic(self.topic)

    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        SeqNr(to)
        self.check_open()
        life = to.life if isinstance(to, Version) else None
        pointer = await self.pointer(journal_id)
        ref = await self.ref(journal_id)
        if pointer is None or ref is None or (life is not None and life != pointer.life):
            return None
        origin = self.parts.origin
        last = min(int(pointer), int(to))
        return await self._produce(ref, Delete(last, origin.host, origin.version, if_exists=True, only_life=life))

    async def purge(self, journal_id: str) -> Position:
        self.check_open()
        ref = await self._ref_to_write(journal_id)
        origin = self.parts.origin
        position = await self._produce(ref, Purge(origin=origin.host, version=origin.version))
        self.parts.writer.forget(ref)
        return position

    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        if mark_id is not None:
            mark_id = check_text("id of a mark", mark_id)
        self.check_open()
        return await self._mark(journal_id, mark_id)

    async def _mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        """Write a mark, also for a strict read of a topic that is closed to others."""
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
        found: set[str] = set()
        ref = await self._open(create=False)
        position = self._position(after)
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
        mark = await self._mark(journal_id)
        beyond = position is not None and position.partition == mark.partition and position.offset > mark.offset
        return position if beyond else mark

    def _position(self, after: After) -> Position | None:
        if after is None:
            return None
        position = check_position(after)
        if position.topic != self.topic:
            raise InvalidPosition(f"{position} is a position of the topic {position.topic!r}, not of {self.topic!r}")
        if self._opened is None or position.partition >= self._opened.topic.partitions:
            raise InvalidPosition(f"{position} is in no partition of this log: is it from another log?")
        return position


async def _refuse(error: InvalidInput) -> Token:
    """Raise when it is awaited, as every other error of an append: callers begin several of them and gather."""
    raise error


def _listed(events: Any) -> Any:
    """What can be listed as a list; the rest as it is, for the check of the draft to refuse."""
    try:
        return events if isinstance(events, list) else list(events)
    except TypeError:
        return events


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
