"""What must never change about a topic is pinned in the store when the topic is first used."""

from __future__ import annotations

from everlog.clock import Clock
from everlog.config import Config
from everlog.errors import TopicReplaced
from everlog.journal.head import Topic
from everlog.log.base import LogTopic
from everlog.store.base import Store


async def pin_topic(store: Store, found: LogTopic, config: Config, clock: Clock) -> Topic:
    """What is pinned for the log's topic; TopicReplaced if the tables were filled from another one."""
    topic = await store.pin(found, segment_size=config.journal.segment_size, base=clock.now_ms() * 1000)
    if topic.id != found.id or topic.partitions > found.partitions:
        raise TopicReplaced(
            f"the topic {found.name} was made again, its tables are filled from another one: "
            "restore the old log, or use a new topic name"
        )
    return topic
