"""Journals of a server: the same methods, the same answers, the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import date
from typing import Any

import msgspec

from everlog.core.arguments import check_append_id, check_flag, check_text, check_whole
from everlog.core.bounded_map import BoundedMap
from everlog.core.duration import ExpireAfter
from everlog.core.events import EventRecord, encode_payload
from everlog.core.json_text import encode_json
from everlog.core.values import MAX_SEQ_NR, Position, SeqNr, SeqRange, Version, check_id, check_position, plain_text
from everlog.errors import Conflict, JournalNotFound, OutcomeUnknown, Overtaken, Unreachable
from everlog.journal.journal import After, Journal, JournalExpiry, Token, check_topic
from everlog.journal.reader import Pin, check_pin
from everlog.journal.snapshots import ANY, Criteria, Snapshots, check_criteria
from everlog.journal.writer import Draft, NewAppendId, check_draft
from everlog.remote.connection import Wire
from everlog.runtime.clock import Clock
from everlog.runtime.keyed_lock import KeyedLock
from everlog.store.port import Snapshot
from everlog.wire.events import RecoveryBody, SnapshotBody, decode_event, snapshot_of, timestamp_of
from everlog.wire.http import etag, segment

PAGE = 500
MAX_TRIES = 100
MAX_KNOWN_JOURNALS = 10_000


class RemoteJournal(Journal):
    """The journals of one topic at a server."""

    def __init__(self, topic: str, wire: Wire, clock: Clock) -> None:
        self.topic = check_topic(topic)
        self.snapshots = RemoteSnapshots(self, wire)
        self._wire = wire
        self._clock = clock
        self._turns = KeyedLock()
        self._known: BoundedMap[str, Version] = BoundedMap(MAX_KNOWN_JOURNALS)

    def url(self, journal_id: str, rest: str = "") -> str:
        check_id(journal_id)
        return f"/journals/{segment(self.topic)}/{segment(journal_id)}{rest}"

    async def _append(self, journal_id: str, draft: Draft, verdict: bool, append_id: str | None) -> Token:
        check_id(journal_id)
        check_draft(draft)
        check_append_id(append_id)
        check_flag("verdict", verdict)
        body = _append_body(draft)
        if draft.anywhere and append_id is None:
            return await self._append_anywhere(journal_id, body, verdict)
        if append_id is None:
            append_id = self._new_append_id(draft.first or 1)
        return await self._post(journal_id, body, draft.expected, verdict, append_id)

    def _new_append_id(self, first: int) -> NewAppendId:
        return NewAppendId(f"{first}.{self._clock.new_id()}")

    async def _append_anywhere(self, journal_id: str, body: dict[str, Any], verdict: bool) -> Token:
        """Append where the journal ends. The seqNr that it had is the expectation, so a repetition is stored once."""
        name = journal_id
        await self._turns.acquire(name)
        try:
            for attempt in range(1, MAX_TRIES + 1):
                known = self._known.get(name)
                expected = known if known is not None else await self.pointer(journal_id) or Version(0)
                try:
                    return await self._post(journal_id, body, expected, verdict, self._new_append_id(expected + 1))
                except Conflict as conflict:
                    if attempt == MAX_TRIES:
                        raise
                    self._remember(name, conflict.actual, conflict.life)
            raise AssertionError("unreachable")
        finally:
            self._turns.release(name)

    async def _post(
        self, journal_id: str, body: dict[str, Any], expected: int | None, verdict: bool, append_id: str
    ) -> Token:
        headers = {"New-Append-Id" if isinstance(append_id, NewAppendId) else "Append-Id": append_id}
        if expected is not None:
            headers |= {"If-Match": etag(expected)} if expected else {"If-None-Match": "*"}
        params = None if verdict else {"verdict": "false"}
        try:
            answer = await self._wire.send("POST", self.url(journal_id), params=params, headers=headers, body=body)
        except Unreachable as error:
            self._known.pop(journal_id, None)
            raise OutcomeUnknown(journal_id, str(append_id), str(error)) from error
        found = answer.json()
        position = Position.parse(found["position"])
        if verdict:
            self._remember(journal_id, found["last"], found["life"])
        return Token(*position, range=SeqRange(found["first"], found["last"]), life=found["life"])

    def _remember(self, journal_id: str, seq_nr: int, life: str | None) -> None:
        self._known.put(journal_id, Version(seq_nr, life))

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
        params = {
            "from": span.first,
            "to": span.last,
            "limit": limit,
            "reverse": "true" if check_flag("reverse", reverse) else None,
            "after": position_text(after),
            "strict": "true" if check_flag("strict", strict) else None,
        }
        async for page in self._pages(journal_id, params):
            yield page

    async def _pages(self, journal_id: str, params: dict[str, Any]) -> AsyncIterator[list[EventRecord]]:
        page: list[EventRecord] = []
        try:
            async with aclosing(self._wire.lines(self.url(journal_id), params)) as lines:
                async for line in lines:
                    page.append(decode_event(line))
                    if len(page) == PAGE:
                        yield page
                        page = []
        except JournalNotFound:
            if "pin" in params:
                raise Overtaken(f"{journal_id!r} was purged while it was being read: read again") from None
            return
        except Exception:
            # What came before the error is part of the answer.
            if page:
                yield page
            raise
        if page:
            yield page

    async def pinned(self, journal_id: str) -> tuple[Pin, Snapshot | None]:
        try:
            answer = await self._wire.send("GET", self.url(journal_id, "/recovery"))
        except JournalNotFound:
            return Pin.of(None), None
        found = msgspec.json.decode(answer.content, type=RecoveryBody)
        pin = replace(Pin.parse(found.pin), halted_at=found.halted_at)
        return pin, None if found.snapshot is None else snapshot_of(found.snapshot)

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
        first, last = check_pin(pin).within(from_seq, to_seq)
        end = None if to_seq == MAX_SEQ_NR else last  # only a read to the end hears of a halt there
        if first <= last or (end is None and pin.halted_at is not None):
            span = {"from": first, "to": end, "limit": limit, "reverse": "true" if reverse else None}
            async for page in self._pages(journal_id, {**span, "pin": pin.text}):
                yield page

    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> Version | None:
        found = await self._pointer(journal_id, after, strict)
        return None if found is None else Version(found["seq_nr"], found["life"])

    async def expiry(self, journal_id: str, *, after: After = None, strict: bool = False) -> JournalExpiry | None:
        found = await self._pointer(journal_id, after, strict)
        if found is None:
            return None
        day, time = found["expire_on"], found["expire_at"]
        return JournalExpiry(
            None if day is None else date.fromisoformat(day), None if time is None else timestamp_of(time)
        )

    async def _pointer(self, journal_id: str, after: After, strict: bool) -> dict[str, Any] | None:
        params = {"after": position_text(after), "strict": "true" if check_flag("strict", strict) else None}
        try:
            answer = await self._wire.send("GET", self.url(journal_id, "/pointer"), params=params)
        except JournalNotFound:
            return None
        found: dict[str, Any] = answer.json()
        return found

    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        try:
            params = {"to": int(SeqNr(to)), "life": to.life if isinstance(to, Version) else None}
            answer = await self._wire.send("DELETE", self.url(journal_id), params=params)
        except JournalNotFound:
            return None
        return Position.parse(answer.json()["position"])

    async def purge(self, journal_id: str) -> Position:
        answer = await self._wire.send("POST", self.url(journal_id, "/purge"))
        self._known.pop(journal_id, None)
        return Position.parse(answer.json()["position"])

    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        if mark_id is not None:
            mark_id = check_text("id of a mark", mark_id)
        answer = await self._wire.send("POST", self.url(journal_id, "/mark"), body={"id": mark_id})
        return Position.parse(answer.json()["position"])

    async def keys(self, *, after: After = None) -> AsyncIterator[str]:
        params = {"after": position_text(after)}
        async with aclosing(self._wire.lines(f"/journals/{segment(self.topic)}", params)) as lines:
            async for line in lines:
                yield msgspec.json.decode(line)


def _append_body(draft: Draft) -> dict[str, Any]:
    events = []
    for event in draft.events:
        kind, data = encode_payload(event.payload)
        payload = msgspec.Raw(data.encode()) if kind == "json" and isinstance(data, str) else data
        one = {"payload": payload, "payload_type": kind, "tags": sorted(event.tags), "seq_nr": event.seq_nr}
        if event.event_type is not None:
            one |= {"type": event.event_type.name, "type_version": event.event_type.version}
        events.append(one)
    after = None if draft.expire_after is None else ExpireAfter.of(draft.expire_after).text()
    return {
        "events": events,
        "metadata": _raw("metadata", draft.metadata),
        "header_metadata": _raw("header metadata", draft.header_metadata),
        "headers": None if draft.headers is None else {plain_text(k): plain_text(v) for k, v in draft.headers.items()},
        "expire_after": after,
    }


def position_text(after: After) -> str | None:
    """A position as a parameter."""
    return None if after is None else str(check_position(after))


def _raw(what: str, value: Any) -> msgspec.Raw | None:
    return None if value is None else msgspec.Raw(encode_json(what, value).encode())


class RemoteSnapshots(Snapshots):
    """The snapshots of one topic's journals at a server."""

    def __init__(self, journal: RemoteJournal, wire: Wire) -> None:
        self._journal = journal
        self._wire = wire

    async def save(self, journal_id: str, *, seq_nr: int, payload: Any, metadata: Any = None) -> None:
        kind, data = encode_payload(payload)
        shown = msgspec.Raw(data.encode()) if kind == "json" and isinstance(data, str) else data
        life = getattr(seq_nr, "life", None)
        body = {"payload": shown, "payload_type": kind, "metadata": _raw("metadata", metadata), "life": life}
        await self._wire.send("PUT", self._journal.url(journal_id, f"/snapshots/{SeqNr(seq_nr)}"), body=body)

    async def list(self, journal_id: str, criteria: Criteria = ANY, *, after: After = None) -> list[Snapshot]:
        params = {**_fitting(criteria), "after": position_text(after)}
        answer = await self._wire.send("GET", self._journal.url(journal_id, "/snapshots"), params=params)
        raw = msgspec.json.decode(answer.content, type=_Snapshots)
        return [snapshot_of(one) for one in raw.snapshots]

    async def _drop(self, journal_id: str, criteria: Criteria) -> int:
        url = self._journal.url(journal_id, "/snapshots")
        return int((await self._wire.send("DELETE", url, params=_fitting(criteria))).json()["dropped"])


class _Snapshots(msgspec.Struct):
    snapshots: list[SnapshotBody]


def _fitting(criteria: Criteria) -> dict[str, int]:
    check_criteria(criteria)
    return {
        "min_seq_nr": int(criteria.min_seq_nr),
        "max_seq_nr": int(criteria.max_seq_nr),
        "min_timestamp": criteria.min_timestamp,
        "max_timestamp": criteria.max_timestamp,
    }
