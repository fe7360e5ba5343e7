"""What must never change about a topic is pinned in the store when the topic is first used."""

from __future__ import annotations

from everlog.clock import Clock
from everlog.config import Config
from everlog.errors import TopicReplaced
from everlog.errors.storage import rescue
from everlog.journal.head import Topic
from everlog.log.base import LogTopic
from everlog.store.base import Store


async def pin_topic(store: Store, found: LogTopic, config: Config, clock: Clock) -> Topic:
    """What is pinned for the log's topic; TopicReplaced if the tables were filled from another one."""
    topic = await store.pin(found, segment_size=config.journal.segment_size, base=clock.now_ms() * 1000)
    if is_replaced(topic, found):
        raise TopicReplaced(
            f"the topic {found.name} was made again, its tables are filled from another one: "
            + rescue(config.journal.short(found.name))
        )
    return topic


async def check_never_used(store: Store, name: str, short: str) -> None:
    """Raise TopicReplaced if a topic that is not in the log has tables: they would not be read, as if it were empty."""
    if any(topic.name == name for topic in await store.pinned()):
        raise TopicReplaced(f"the topic {name} is not in the log any more, its tables are filled: {rescue(short)}")


def is_replaced(topic: Topic, found: LogTopic) -> bool:
    """Whether the log's topic is not the one that was pinned, or has lost partitions."""
    return topic.id != found.id or topic.partitions > found.partitions
