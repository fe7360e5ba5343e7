"""Where the pipeline starts, and what it must leave out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from everlog.core.values import LogOffsets, partition_name
from everlog.errors import LogTruncated, TopicReplaced
from everlog.errors.storage import rescue
from everlog.journal.reader import check_truncation
from everlog.journal.retired_topics import retired_topics
from everlog.journal.topic_registry import look_again, pin_topic
from everlog.log.port import Log, LogTopic
from everlog.runtime.clock import Clock
from everlog.store.port import Store


@dataclass(slots=True)
class Start:
    """The first offset to read of every partition, the pinned topics, those that are retired, and why others are left
    out."""

    offsets: LogOffsets = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)

    @property
    def passed(self) -> set[str]:
        """Topics of which nothing is read."""
        return self.retired | self.left_out.keys()


async def find_start(log: Log, store: Store, config: Config, clock: Clock, *, accept_loss: bool) -> Start:
    """Begin right after pointer2; a topic that was truncated, replaced or deleted is left out with its reason."""
    start = Start(retired=await retired_topics(store))
    present = {topic.name: topic for topic in await log.topics() if config.journal.includes(topic.name)}
    pinned = [topic.name for topic in await store.pinned() if config.journal.includes(topic.name)]
    missing = [name for name in pinned if name not in present.keys() | start.retired]
    for name, late in zip(missing, await asyncio.gather(*(look_again(log, name) for name in missing)), strict=True):
        if late is None:
            start.left_out[name] = f"it is not in the log any more: {rescue(config.journal.short(name))}"
        else:  # somebody made and pinned it since we looked
            present[name] = late
    for name, found in present.items():
        if name in start.retired:
            continue
        try:
            topic = await pin_topic(store, found, config, clock)
            start.offsets |= await _offsets(log, store, found, topic, clock, accept_loss=accept_loss)
            start.topics[name] = topic
        except (LogTruncated, TopicReplaced) as error:
            start.left_out[name] = str(error)
    return start


async def _offsets(
    log: Log, store: Store, found: LogTopic, topic: Topic, clock: Clock, *, accept_loss: bool
) -> LogOffsets:
    offsets: LogOffsets = {}
    for partition in range(found.partitions):
        bounds = await log.bounds(found, partition)
        pointer = await store.pointer(topic.name, partition)
        if accept_loss and bounds.start > pointer + 1:
            lost = {"topic": topic.name, "partition": partition, "from": pointer + 1, "to": bounds.start - 1}
            name = f"loss {topic.name}/{partition} {pointer + 1}"
            await store.save_status(name, msgspec.json.encode(lost), clock.now_ms())
            pointer = bounds.start - 1
            await store.publish({(topic.name, partition): pointer}, clock.now_ms())
        check_truncation(topic.name, partition, bounds, pointer)
        offsets[partition_name(topic.name, partition)] = pointer + 1
    return offsets
