"""Where the pipeline begins: which topics it reads, from which offsets, and which it leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from everlog.core.values import LogOffsets, partition_name
from everlog.errors import LogTruncated, TopicReplaced
from everlog.errors.storage import rescue
from everlog.journal.reader import check_truncation
from everlog.journal.topic_registry import look_again, pin_topic, retired_topics
from everlog.log.port import Log, LogTopic
from everlog.runtime.clock import Clock
from everlog.store.port import Store


@dataclass(slots=True)
class Start:
    """The first offset to read of every partition, the topics as the log has them and as they are pinned, those that
    are retired, and why others are left out."""

    offsets: LogOffsets = field(default_factory=dict)
    found: dict[str, LogTopic] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    # All topics that the log had, also those that are left out.
    listed: Sequence[LogTopic] = ()


async def find_start(log: Log, store: Store, config: Config, clock: Clock, *, accept_loss: bool) -> Start:
    """Begin right after pointer2; a topic that was truncated, replaced or deleted is left out with its reason."""
    listed, retired = await asyncio.gather(_list(log, config), retired_topics(store))
    start = Start(retired=retired, listed=listed)
    present = {topic.name: topic for topic in listed}
    pinned = [topic.name for topic in await store.pinned() if config.journal.includes(topic.name)]
    missing = [name for name in pinned if name not in present.keys() | start.retired]
    for name, late in zip(missing, await asyncio.gather(*(look_again(log, name) for name in missing)), strict=True):
        if late is None:
            start.left_out[name] = f"it is not in the log any more: {rescue(config.journal.short(name))}"
        else:  # it was made and pinned since we looked
            present[name] = late
    for name, found in present.items():
        if name in start.retired:
            continue
        try:
            topic = await pin_topic(store, found, config, clock)
            start.offsets |= await _offsets(log, store, found, topic, clock, accept_loss=accept_loss)
            start.found[name], start.topics[name] = found, topic
        except (LogTruncated, TopicReplaced) as error:
            start.left_out[name] = str(error)
    return start


async def has_changed(start: Start, log: Log, store: Store, config: Config) -> bool:
    """Whether there are other topics by now, or others are retired: then the pipeline must begin anew."""
    listed, retired = await asyncio.gather(_list(log, config), retired_topics(store))
    return listed != start.listed or retired != start.retired


async def _list(log: Log, config: Config) -> list[LogTopic]:
    """All topics that may hold journals, with their ids and numbers of partitions."""
    return [topic for topic in await log.topics() if config.journal.includes(topic.name)]


async def _offsets(
    log: Log, store: Store, found: LogTopic, topic: Topic, clock: Clock, *, accept_loss: bool
) -> LogOffsets:
    bounds, pointers = await asyncio.gather(
        asyncio.gather(*(log.bounds(found, partition) for partition in range(found.partitions))),
        store.pointers(topic.name),
    )
    offsets: LogOffsets = {}
    for partition, held in enumerate(bounds):
        pointer = pointers.get(partition, -1)
        if accept_loss and held.start > pointer + 1:
            lost = {"topic": topic.name, "partition": partition, "from": pointer + 1, "to": held.start - 1}
            name = f"loss {topic.name}/{partition} {pointer + 1}"
            await store.save_status(name, msgspec.json.encode(lost), clock.now_ms())
            pointer = held.start - 1
            await store.publish({(topic.name, partition): pointer}, clock.now_ms())
        check_truncation(topic.name, partition, held, pointer)
        offsets[partition_name(topic.name, partition)] = pointer + 1
    return offsets
