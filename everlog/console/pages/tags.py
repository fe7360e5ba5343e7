"""Views by tag: which there are, and the newest events of one."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

from everlog.api import Everlog
from everlog.console.console import ConsolePage, Context, Model
from everlog.core.events import shown_payload
from everlog.tags.tag import TaggedEvent, TagInfo

MAX_TAGS = 500
PAGE = 50
# A view is read forwards only: its newest events are looked for in ever longer times before its last one.
WINDOWS = (timedelta(seconds=1), timedelta(seconds=30), timedelta(minutes=10), timedelta(hours=4), timedelta(days=7))


async def build_tags(context: Context) -> Model:
    log = context.log
    text, name = context.text("text").casefold(), context.text("tag")
    found = sorted(await log.tags(), key=lambda one: one.tag)
    listed = [one for one in found if text in one.tag.casefold()]
    observation = await context.sampler.latest(5.0)
    model: Model = {
        "tags": [_info(one) for one in listed[:MAX_TAGS]],
        "more": max(0, len(listed) - MAX_TAGS),
        "total": len(found),
        "watermark_ms": None if observation.tags is None else observation.tags.watermark_ms,
        "lag": None if observation.tags is None else observation.tags.lag,
        "warning": (await log.slices().status()).warning,
        "tag": name or None,
        "events": [],
        "next": None,
    }
    if name:
        info = next((one for one in found if one.tag == name), None)
        after = context.text("after")
        events = await _after(log, name, after) if after else await newest(log, name, info)
        model["info"] = None if info is None else _info(info)
        model["events"] = [_event(one) for one in events]
        model["next"] = str(events[-1].offset) if after and len(events) == PAGE else None
        model["from_start"] = bool(after)
    return model


def _info(one: TagInfo) -> dict[str, Any]:
    return {
        "tag": one.tag,
        "events": one.events,
        "journals": one.journals,
        "last_offset": str(one.last_offset),
        "last_ms": round(one.last_time.timestamp() * 1000),
    }


async def _after(log: Everlog, name: str, after: str) -> list[TaggedEvent]:
    """A page in order, behind an offset; `start` is the beginning."""
    found = []
    async for event in log.tag(name).current(after=None if after == "start" else after):
        found.append(event)
        if len(found) == PAGE:
            break
    return found


async def newest(log: Everlog, name: str, info: TagInfo | None) -> list[TaggedEvent]:
    """The last events, the newest first."""
    if info is None:
        return []
    last = info.last_time
    starts = [last - window for window in WINDOWS] + [datetime.fromtimestamp(0, UTC)]
    kept: deque[TaggedEvent] = deque(maxlen=PAGE)
    for since in starts:
        kept.clear()
        async for event in log.tag(name).current(since=since):
            kept.append(event)
        if len(kept) == PAGE:
            break
    return list(reversed(kept))


def _event(one: TaggedEvent) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "id": one.id,
        "seq_nr": one.seq_nr,
        "number": one.number,
        "offset": str(one.offset),
        "time_ms": one.event.timestamp,
        "type": one.event.type,
        "type_version": one.event.type_version,
        "payload_type": one.event.payload_type,
        "payload": shown_payload(one.event.payload_type, one.event.data),
        "tags": sorted(one.tags),
        "position": f"{one.topic}:{one.event.partition}:{one.event.offset}",
    }


TAGS = ConsolePage("tags", "Tags", "tags.html", build_tags)
