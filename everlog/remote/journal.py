"""Journals of a server: the same methods, the same answers, the same errors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.events import EventRecord, encode_payload
from everlog.core.values import MAX_SEQ_NR, Position, SeqNr, SeqRange, check_id
from everlog.errors import Conflict, JournalNotFound, OutcomeUnknown, Unreachable
from everlog.journal.journal import After, Journal, Token, check_topic
from everlog.journal.snapshots import ANY, Criteria, Snapshots
from everlog.journal.writer import Draft, check_draft
from everlog.remote.connection import Wire
from everlog.runtime.clock import Clock
from everlog.runtime.keyed_lock import KeyedLock
from everlog.store.port import Snapshot
from everlog.wire.events import EventBody, SnapshotBody, record_of, snapshot_of
from everlog.wire.http import segment

PAGE = 500
MAX_TRIES = 100
KNOWN_JOURNALS = 10_000
_decode_event = msgspec.json.Decoder(EventBody).decode


class RemoteJournal(Journal):
    """The journals of one topic at a server."""

    def __init__(self, topic: str, wire: Wire, clock: Clock) -> None:
        self.topic = check_topic(topic)
        self.snapshots = RemoteSnapshots(self, wire)
        self._wire = wire
        self._clock = clock
        self._turns = KeyedLock()
        self._known: OrderedDict[str, int] = OrderedDict()

    def url(self, journal_id: str, rest: str = "") -> str:
        check_id(journal_id)
        return f"/journals/{segment(self.topic)}/{segment(journal_id)}{rest}"

    async def _append(self, journal_id: str, draft: Draft, verdict: bool, append_id: str | None) -> Token:
        check_draft(draft)
        body = _append_body(draft)
        if draft.anywhere and append_id is None:
            return await self._append_anywhere(journal_id, body, verdict)
        if append_id is None:
            first = draft.events[0].seq_nr or (draft.expected or 0) + 1
            append_id = f"{first}.{self._clock.new_id()}"
        return await self._post(journal_id, body, draft.expected, verdict, append_id)

    async def _append_anywhere(self, journal_id: str, body: dict[str, Any], verdict: bool) -> Token:
        """Append where the journal ends. The seqNr that it had is the expectation, so a repetition is stored once."""
        name = journal_id
        await self._turns.take(name)
        try:
            for attempt in range(1, MAX_TRIES + 1):
                known = self._known.get(name)
                expected = known if known is not None else await self.pointer(journal_id) or 0
                try:
                    append_id = f"{expected + 1}.{self._clock.new_id()}"
                    return await self._post(journal_id, body, expected, verdict, append_id)
                except Conflict as conflict:
                    if attempt == MAX_TRIES:
                        raise
                    self._remember(name, conflict.actual)
            raise AssertionError("unreachable")
        finally:
            self._turns.end(name)

    async def _post(
        self, journal_id: str, body: dict[str, Any], expected: int | None, verdict: bool, append_id: str
    ) -> Token:
        headers = {"Append-Id": append_id}
        if expected is not None:
            headers |= {"If-Match": f'"{expected}"'} if expected else {"If-None-Match": "*"}
        params = None if verdict else {"verdict": "false"}
        try:
            answer = await self._wire.send("POST", self.url(journal_id), params=params, headers=headers, body=body)
        except Unreachable as error:
            self._known.pop(journal_id, None)
            raise OutcomeUnknown(journal_id, append_id, str(error)) from error
        found = answer.json()
        position = Position.parse(found["position"])
        self._remember(journal_id, found["last"])
        return Token(*position, range=SeqRange(found["first"], found["last"]))

    def _remember(self, journal_id: str, seq_nr: int) -> None:
        self._known[journal_id] = seq_nr
        self._known.move_to_end(journal_id)
        if len(self._known) > KNOWN_JOURNALS:
            self._known.popitem(last=False)

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
        params = {
            "from": span.first,
            "to": span.last,
            "limit": limit,
            "reverse": "true" if reverse else None,
            "after": None if after is None else str(after),
            "strict": "true" if strict else None,
        }
        page: list[EventRecord] = []
        try:
            async with aclosing(self._wire.lines(self.url(journal_id), params)) as lines:
                async for line in lines:
                    page.append(record_of(_decode_event(line)))
                    if len(page) == PAGE:
                        yield page
                        page = []
        except JournalNotFound:
            return
        except Exception:
            # What came before the error is part of the answer.
            if page:
                yield page
            raise
        if page:
            yield page

    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> int | None:
        params = {"after": None if after is None else str(after), "strict": "true" if strict else None}
        try:
            answer = await self._wire.send("GET", self.url(journal_id, "/pointer"), params=params)
        except JournalNotFound:
            return None
        return int(answer.json()["seq_nr"])

    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        try:
            answer = await self._wire.send("DELETE", self.url(journal_id), params={"to": int(SeqNr(to))})
        except JournalNotFound:
            return None
        return Position.parse(answer.json()["position"])

    async def purge(self, journal_id: str) -> Position:
        answer = await self._wire.send("POST", self.url(journal_id, "/purge"))
        self._known.pop(journal_id, None)
        return Position.parse(answer.json()["position"])

    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        answer = await self._wire.send("POST", self.url(journal_id, "/mark"), body={"id": mark_id})
        return Position.parse(answer.json()["position"])

    async def keys(self, *, after: After = None) -> AsyncIterator[str]:
        params = {"after": None if after is None else str(after)}
        async with aclosing(self._wire.lines(f"/journals/{segment(self.topic)}", params)) as lines:
            async for line in lines:
                yield msgspec.json.decode(line)


def _append_body(draft: Draft) -> dict[str, Any]:
    events = []
    for event in draft.events:
        kind, data = encode_payload(event.payload)
        payload = msgspec.Raw(data.encode()) if kind == "json" and isinstance(data, str) else data
        events.append({"payload": payload, "payload_type": kind, "tags": sorted(event.tags), "seq_nr": event.seq_nr})
    after = None if draft.expire_after is None else ExpireAfter.of(draft.expire_after).text()
    return {
        "events": events,
        "metadata": draft.metadata,
        "header_metadata": draft.header_metadata,
        "headers": None if draft.headers is None else dict(draft.headers),
        "expire_after": after,
    }


class RemoteSnapshots(Snapshots):
    """The snapshots of one topic's journals at a server."""

    def __init__(self, journal: RemoteJournal, wire: Wire) -> None:
        self._journal = journal
        self._wire = wire

    async def save(self, journal_id: str, *, seq_nr: int, payload: Any, metadata: Any = None) -> None:
        kind, data = encode_payload(payload)
        shown = msgspec.Raw(data.encode()) if kind == "json" and isinstance(data, str) else data
        body = {"payload": shown, "payload_type": kind, "metadata": metadata}
        await self._wire.send("PUT", self._journal.url(journal_id, f"/snapshots/{SeqNr(seq_nr)}"), body=body)

    async def list(self, journal_id: str, criteria: Criteria = ANY, *, after: After = None) -> list[Snapshot]:
        params = {**_fitting(criteria), "after": None if after is None else str(after)}
        answer = await self._wire.send("GET", self._journal.url(journal_id, "/snapshots"), params=params)
        raw = msgspec.json.decode(answer.content, type=_Snapshots)
        return [snapshot_of(one) for one in raw.snapshots]

    async def _drop(self, journal_id: str, criteria: Criteria) -> int:
        url = self._journal.url(journal_id, "/snapshots")
        return int((await self._wire.send("DELETE", url, params=_fitting(criteria))).json()["dropped"])


class _Snapshots(msgspec.Struct):
    snapshots: list[SnapshotBody]


def _fitting(criteria: Criteria) -> dict[str, int]:
    return {
        "min_seq_nr": int(criteria.min_seq_nr),
        "max_seq_nr": int(criteria.max_seq_nr),
        "min_timestamp": criteria.min_timestamp,
        "max_timestamp": criteria.max_timestamp,
    }
