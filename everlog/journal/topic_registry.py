"""What must never change about a topic is pinned in the store when the topic is first used."""

from __future__ import annotations

import asyncio

from everlog.config import Config
from everlog.core.head import Topic
from everlog.errors import TopicReplaced
from everlog.errors.storage import rescue
from everlog.log.port import Log, LogTopic
from everlog.runtime.clock import Clock
from everlog.store.port import Store

# When to look again for a topic that must be there: brokers learn of a new one at different times.
LOOKS = (0.0, 0.1, 0.4)


async def pin_topic(store: Store, found: LogTopic, config: Config, clock: Clock) -> Topic:
    """What is pinned for the log's topic; TopicReplaced if the tables were filled from another one."""
    topic = await store.pin(found, segment_size=config.journal.segment_size, base=clock.now_ms() * 1000)
    if is_replaced(topic, found):
        raise TopicReplaced(
            f"the topic {found.name} was made again, its tables are filled from another one: "
            + rescue(config.journal.short(found.name))
        )
    return topic


async def find_topic(log: Log, store: Store, name: str, short: str) -> LogTopic | None:
    """The log's topic, or None if it was never used.

    TopicReplaced if it is gone, but has tables: they would not be read, as if it were empty.
    """
    found = await log.topic(name)
    if found is None and any(topic.name == name for topic in await store.pinned()):
        found = await look_again(log, name)
        if found is None:
            raise TopicReplaced(f"the topic {name} is not in the log any more, its tables are filled: {rescue(short)}")
    return found


async def look_again(log: Log, name: str) -> LogTopic | None:
    """A topic that somebody has seen, in the log or pinned; None if it is gone.

    A topic is made first and pinned then. So that it was not in the log says nothing if somebody looked there before
    it was seen to be pinned: its first user may have made and pinned it in between.
    """
    for pause in LOOKS:
        await asyncio.sleep(pause)
        found = await log.topic(name)
        if found is not None:
            return found
    return None


def is_replaced(topic: Topic, found: LogTopic) -> bool:
    """Whether the log's topic is not the one that was pinned, or has lost partitions."""
    return topic.id != found.id or topic.partitions > found.partitions
