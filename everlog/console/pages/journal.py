"""A journal: type its key, see its life. Without a key: topics, and the first keys of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everlog.api import Everlog
from everlog.console.console import ConsolePage, Context, Model
from everlog.console.timeline import Timeline, read_timeline, state_at
from everlog.core.events import EventRecord, shown_payload
from everlog.core.head import Head, exists
from everlog.errors import InvalidInput
from everlog.journal.reader import Ref

MAX_KEYS = 200
MAX_LOOKED = 20_000
MAX_STATE_EVENTS = 20


async def build_journal(context: Context) -> Model:
    topics = sorted(await context.log.topics())
    topic, journal_id = context.text("topic"), context.text("id")
    if not topic and journal_id and len(topics) == 1:
        topic = topics[0]
    model: Model = {"topics": topics, "topic": topic, "id": journal_id, "keys": [], "more_keys": False, "journal": None}
    if topic and topic not in topics:
        names = ", ".join(topics) or "none yet"
        raise InvalidInput(f"there is no topic {topic!r}; there are: {names}")
    if journal_id and not topic:
        raise InvalidInput("which topic is it in? Choose one, or search for the key")
    if journal_id:
        model["journal"] = await _journal(context, topic, journal_id)
    elif topic:
        text = context.text("text")
        model["keys"], model["more_keys"] = await first_keys(context.log, topic, lambda key: text in key)
    return model


async def first_keys(log: Everlog, topic: str, wanted: Callable[[str], bool]) -> tuple[list[str], bool]:
    """The first keys of a topic that are wanted, and whether there may be more: no topic is read to its end."""
    found: list[str] = []
    looked = 0
    async for key in log.journal(topic).keys():
        if len(found) == MAX_KEYS or looked == MAX_LOOKED:
            return found, True
        looked += 1
        if wanted(key):
            found.append(key)
    return found, False


async def _journal(context: Context, topic: str, journal_id: str) -> Model:
    journal = context.log.journal(topic)
    ref = await journal.ref(journal_id)
    assert ref is not None, "its topic is there"
    before, upto, at = context.whole("before"), context.whole("upto"), context.whole("at")
    timeline = await read_timeline(journal, ref, before=before, upto=upto)
    if at is not None and before is None and timeline.whole:
        # What led to that position, not what came after it.
        head, _ = state_at(ref, timeline.whole, at)
        before, upto = (1 if head is None else head.seq_nr + 1), at + 1
        timeline = await read_timeline(journal, ref, before=before, upto=upto)
    view, page = timeline.view, timeline.page
    tail = sum(item["source"] == "tail" for item in timeline.items)
    last = page.events[-1] if page.events else None
    return {
        "exists": exists(view.state),
        "known": view.state is not None or bool(timeline.items),
        "head": _head(view.state),
        "stored_seq_nr": None if view.stored is None else view.stored.seq_nr,
        "partition": ref.partition,
        "pointer": view.pointer,
        "end": view.end,
        "items": timeline.items,
        "in_tail": tail,
        "halted": page.halted,
        "snapshots": len(await journal.snapshots.list(journal_id)),
        "older": {"before": last.seq_nr, "upto": last.offset} if page.more and last is not None else None,
        "newer": context.whole("before") is not None,
        "scrub": _scrub(ref, timeline, at),
    }


def _head(head: Head | None) -> dict[str, Any] | None:
    if head is None:
        return None
    return {
        "seq_nr": head.seq_nr,
        "delete_to": head.delete_to,
        "created_ms": head.created,
        "updated_ms": head.updated,
        "expire_on": None if head.expire_on is None else str(head.expire_on),
        "expire_at_ms": head.expire_at,
        "record_id": head.record_id,
        "purged": head.purged,
        "halted_at": head.halted_at,
        "offset": head.offset,
        "origin": head.origin,
    }


def _scrub(ref: Ref, timeline: Timeline, at: int | None) -> dict[str, Any] | None:
    """The journal as it was at a position. None: the log no longer holds its past."""
    if not timeline.whole:
        return None
    offsets = [entry.record.offset for entry in timeline.whole]
    chosen = offsets[-1] if at is None else max([offset for offset in offsets if offset <= at], default=offsets[0])
    place = offsets.index(chosen)
    head, rows = state_at(ref, timeline.whole, chosen)
    return {
        "active": at is not None,
        "at": chosen,
        "step": place + 1,
        "steps": len(offsets),
        "first": offsets[0],
        "last": offsets[-1],
        "previous": offsets[place - 1] if place else None,
        "next": offsets[place + 1] if place + 1 < len(offsets) else None,
        "time_ms": timeline.whole[place].record.timestamp,
        "exists": exists(head),
        "head": _head(head),
        "events": len(rows),
        "last_events": [_brief(row) for row in rows[-MAX_STATE_EVENTS:][::-1]],
    }


def _brief(row: EventRecord) -> dict[str, Any]:
    payload = shown_payload(row.payload_type, row.data)
    return {"seq_nr": row.seq_nr, "payload": payload, "payload_type": row.payload_type, "time_ms": row.timestamp}


JOURNAL = ConsolePage("journal", "Journal", "journal.html", build_journal)
