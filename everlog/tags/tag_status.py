"""How far views by tag are behind the log. The pipeline fills them: without it they stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec

from everlog.core.values import partition_name
from everlog.errors import EverlogError
from everlog.journal.parts import JournalParts
from everlog.journal.topic_registry import retired_topics
from everlog.pipeline.status import PipelineState, PipelineStatus, read_pipeline_status
from everlog.store.tag_port import TagTables

# A working pipeline is rarely this far behind.
LATE_S = 30.0
# For callers that can do without it.
ANSWER_S = 1.0
START = "start it with 'everlog up' or 'everlog replicate'"


class TagStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the views by tag, which are filled together, are behind the log.

    `records`: those of the log that are not in the views yet. `seconds`: how long the oldest of them has waited, None
    if that is unknown. `complete_ms`: up to when the views are complete, None before the first batch. `pipeline`: its
    state, None if none ever ran here. `remedy`: what to do, None if nothing is to be done.
    """

    records: int
    seconds: float | None = 0.0
    complete_ms: int | None = None
    pipeline: PipelineState | None = None
    remedy: str | None = None

    @property
    def warning(self) -> str | None:
        """What readers of a view should know, in one sentence; None if it is up to date or nearly so.

        >>> print(TagStatus(records=3, seconds=42.0, pipeline="running").warning)
        views by tag are 3 records behind the log, the oldest for 42 s
        """
        if not self.records or (self.remedy is None and (self.seconds or 0.0) < LATE_S):
            return None
        what = f"views by tag are {self.records:,} record{'' if self.records == 1 else 's'} behind the log"
        oldest = "" if self.seconds is None else f", the oldest for {self.seconds:,.0f} s"
        return f"{what}{oldest}{'' if self.remedy is None else ': ' + self.remedy}"


async def known_soon(look: Awaitable[TagStatus]) -> TagStatus | None:
    """None if that is not known within a moment: reads of views do not need the log, and must not wait for it."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await look
    except (EverlogError, TimeoutError):
        return None


async def read_tag_status(parts: JournalParts, tables: TagTables) -> TagStatus:
    """As of this call; also right while no pipeline runs. The log's ends are read before the watermark."""
    journal, now_ms = parts.config.journal, parts.clock.now_ms()
    retired = await retired_topics(parts.store)
    topics = [one for one in await parts.log.topics() if journal.includes(one.name) and one.name not in retired]
    bounds = [
        (topic, partition, await parts.log.bounds(topic, partition))
        for topic in topics
        for partition in range(topic.partitions)
    ]
    watermark = await tables.watermark()
    records, ages = 0, []
    for topic, partition, (start, end) in bounds:
        first = max(start, watermark.positions.get(partition_name(topic.name, partition), 0))
        if end > first:
            records += end - first
            oldest = await parts.log.timestamp_at(topic, partition, first)
            ages.append(None if oldest is None else max(0.0, (now_ms - oldest) / 1000))
    pipeline = await read_pipeline_status(parts, retired)
    return TagStatus(
        records=records,
        seconds=max((age for age in ages if age is not None), default=None if ages else 0.0),
        complete_ms=watermark.end.ms if watermark.nr else None,
        pipeline=None if pipeline is None else pipeline.state,
        remedy=_remedy(pipeline) if records else None,
    )


def _remedy(pipeline: PipelineStatus | None) -> str | None:
    if pipeline is None:
        return f"no pipeline ever ran here, {START}"
    match pipeline.state:
        case "stopped":
            return f"the pipeline is stopped, {START}"
        case "lost":
            return f"the pipeline stopped reporting without shutting down, {START}"
        case "retrying":
            return "the pipeline fails and tries again, 'everlog status' says why"
    if pipeline.tags_wait_for and pipeline.left_out:
        return "they wait for topics that are left out, 'everlog status' says why"
    return None
