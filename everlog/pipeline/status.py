"""What the pipeline is doing, and how far it is behind: plain data.

The pipeline saves its own status in the store; lag is always measured live, so it is right with the pipeline down.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from everlog.core.values import parse_partition_name
from everlog.journal.parts import JournalParts
from everlog.journal.topic_registry import retired_topics
from everlog.log.port import LogTopic
from everlog.pipeline.phases import PHASES, SlowKey
from everlog.runtime.supervisor import LoopStatus
from everlog.store.port import Store

PIPELINE = "pipeline"
LOST_AFTER_S = 30.0

PipelineState = Literal["starting", "running", "retrying", "stopped", "lost"]


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition of the log. It holds offsets from `start` up to but not including `end`.

    `pointer` is the last replicated offset, -1 if there is none; `lag` counts the records that are not replicated
    yet, `lag_seconds` is the age of the oldest of them (0 without any, None if it is unknown).
    """

    topic: str
    partition: int
    start: int
    end: int
    pointer: int
    lag: int
    lag_seconds: float | None = None


class CycleStatus(msgspec.Struct, frozen=True):
    """One cycle: when it ended, how long it took, its records, its milliseconds by phase, the rows it wrote by table.

    The phases add up to at most `ms`.
    """

    ended_ms: int
    ms: float
    records: int
    phases: dict[str, float]
    rows: dict[str, int]


class PipelineStatus(msgspec.Struct, frozen=True):
    """What a pipeline reported last. Counts are since its start; `left_out` are topics it cannot take, and why;
    `tags_wait_for` are log partitions that hold the watermark of views by tag: nothing behind it can be read yet.

    `cycle_ms` is how long all cycles took together, `phase_ms` the same by phase, `rows` the rows that were written
    by table: a head that ten cycles wrote counts ten times. `rejected_by_life` are those of the rejected appends that
    expected a life which a purge had ended. `recent` are the last cycles, the newest at the end,
    and `slowest` the journals that took most of one of these."""

    state: PipelineState
    pid: int
    host: str
    started_ms: int
    updated_ms: int = 0
    cycles: int = 0
    records: int = 0
    events: int = 0
    rejected: int = 0
    rejected_by_life: int = 0
    quarantined: int = 0
    records_per_second: float = 0.0
    last_cycle_records: int = 0
    last_cycle_ms: float = 0.0
    cycle_ms_p50: float = 0.0
    last_error: str | None = None
    last_error_ms: int | None = None
    left_out: dict[str, str] = {}
    tags_wait_for: list[str] = []
    cycle_ms: float = 0.0
    phase_ms: dict[str, float] = {}
    rows: dict[str, int] = {}
    recent: list[CycleStatus] = []
    slowest: list[SlowKey] = []

    @property
    def recent_phases(self) -> dict[str, float]:
        """The milliseconds of each phase in the last cycles, on average, in the order in which they happen."""
        known = [phase.name for phase in PHASES]
        found = {name for cycle in self.recent for name in cycle.phases}
        names = [name for name in known if name in found] + sorted(found.difference(known))
        return {name: sum(cycle.phases.get(name, 0.0) for cycle in self.recent) / len(self.recent) for name in names}


class Status(msgspec.Struct, frozen=True):
    """Everything at one glance.

    `where` is the folder, or the servers. `services` is what other services, such as `expiry`, reported last.
    `concerns` says by topic what may lose acknowledged appends one day. `nodes` are the servers that share the
    documents. `retired` topics are no longer replicated, and their lag does not count. `loops` are those of the process
    that answers: of its workers, and of the server if it is one.
    """

    where: str
    time_ms: int
    partitions: list[PartitionStatus]
    pipeline: PipelineStatus | None
    lag: int
    lag_seconds: float | None
    quarantined: int
    services: dict[str, Any] = {}
    concerns: dict[str, list[str]] = {}
    nodes: list[dict[str, Any]] = []
    retired: list[str] = []
    loops: list[LoopStatus] = []

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.partitions})


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PipelineStatus).decode


async def save_pipeline_status(store: Store, status: PipelineStatus, now_ms: int) -> None:
    """Keep the pipeline's status, as of now."""
    stamped = msgspec.structs.replace(status, updated_ms=now_ms)
    await store.save_status(PIPELINE, _encode(stamped), now_ms)


async def read_status(parts: JournalParts) -> Status:
    """The status as of this call. What was appended before the call counts as lag until it is replicated."""
    journal = parts.config.journal
    now_ms = parts.clock.now_ms()
    partitions: list[PartitionStatus] = []
    retired = await retired_topics(parts.store)
    for topic in await parts.log.topics():
        if journal.includes(topic.name) and topic.name not in retired:
            partitions += await _partitions(parts, topic, journal.short(topic.name), now_ms)
    saved = await parts.store.statuses()
    ages = [partition.lag_seconds for partition in partitions]
    return Status(
        where=parts.config.where,
        time_ms=now_ms,
        partitions=partitions,
        pipeline=_without(retired, _pipeline(saved.pop(PIPELINE, None), now_ms, parts.config.pipeline.max_retry_s)),
        lag=sum(partition.lag for partition in partitions),
        lag_seconds=max((age for age in ages if age is not None), default=None if ages else 0.0),
        quarantined=await parts.store.count_quarantined(),
        services={name: msgspec.json.decode(found) for name, found in saved.items()},
        concerns={
            journal.short(name): found for name, found in (await parts.log.concerns()).items() if name not in retired
        },
        retired=sorted(journal.short(name) for name in retired if journal.includes(name)),
    )


async def read_pipeline_status(parts: JournalParts, retired: Collection[str]) -> PipelineStatus | None:
    """What the pipeline reported last; None if none ever ran here."""
    saved = (await parts.store.statuses()).get(PIPELINE)
    return _without(retired, _pipeline(saved, parts.clock.now_ms(), parts.config.pipeline.max_retry_s))


async def _partitions(parts: JournalParts, topic: LogTopic, short: str, now_ms: int) -> list[PartitionStatus]:
    """The log's ends are read before the pointers, so that no lag means: all that stood there is replicated."""
    bounds = [await parts.log.bounds(topic, partition) for partition in range(topic.partitions)]
    pointers = await parts.store.pointers(topic.name)
    found = []
    for partition, (start, end) in enumerate(bounds):
        pointer = pointers.get(partition)
        if pointer is None:  # none yet, or of a partition that was added later
            pointer = await parts.store.pointer(topic.name, partition)
        lag = max(0, end - 1 - pointer)
        age: float | None = 0.0
        if lag:
            oldest = await parts.log.timestamp_at(topic, partition, pointer + 1)
            age = None if oldest is None else max(0.0, (now_ms - oldest) / 1000)
        found.append(PartitionStatus(short, partition, start, end, pointer, lag, age))
    return found


def _pipeline(saved: bytes | None, now_ms: int, max_retry_s: float) -> PipelineStatus | None:
    """The saved status; a pipeline that stopped reporting without shutting down is lost."""
    if saved is None:
        return None
    try:
        status = _decode(saved)
    except msgspec.DecodeError:
        return None  # of another version, which will write again soon or never
    # Between two tries it may be silent on purpose.
    patience = LOST_AFTER_S + (max_retry_s if status.state == "retrying" else 0.0)
    if status.state != "stopped" and now_ms - status.updated_ms > patience * 1000:
        return msgspec.structs.replace(status, state="lost")
    return status


def _without(retired: Collection[str], status: PipelineStatus | None) -> PipelineStatus | None:
    """What the pipeline reported last, without the topics that were retired since: those need no repair."""
    if status is None or not retired:
        return status
    return msgspec.structs.replace(
        status,
        left_out={topic: reason for topic, reason in status.left_out.items() if topic not in retired},
        tags_wait_for=[place for place in status.tags_wait_for if parse_partition_name(place)[0] not in retired],
    )


def caught_up(status: Status) -> bool:
    """Whether all that was in the log when the status was read is also in the tables.

    >>> caught_up(Status("data", 0, [PartitionStatus("orders", 0, 0, 3, 2, 0, 0.0)], None, 0, 0.0, 0))
    True
    """
    return all(partition.pointer >= partition.end - 1 for partition in status.partitions)
