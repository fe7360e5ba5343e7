"""Topics: what must never change about one is pinned in the store when it is first used; and retiring one.

A retired topic can still be read; it is not written to or replicated any more, and nothing waits for it. A retirement
is final. The watermark of views by tag passes over what the topic still owed; if the topic came back, its events would
appear below the watermark, where no reader looks again. To go on, copy the journals into another topic.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from everlog.core.plan import RETIRED
from everlog.errors import InvalidInput, JournalNotFound, NotReplicated, TopicReplaced
from everlog.errors.storage import rescue
from everlog.journal.damaged_log import DamagedLog, is_replaced
from everlog.log.port import Log, LogTopic
from everlog.runtime.clock import Clock
from everlog.store.port import Store

if TYPE_CHECKING:
    from everlog.journal.parts import JournalParts

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
    """A topic that was seen already, in the log or pinned; None if it is gone.

    A topic is first made, then pinned. A caller that looked into the log before it saw the topic pinned knows
    nothing: the topic's first user may have made and pinned it in between.
    """
    for pause in LOOKS:
        await asyncio.sleep(pause)
        found = await log.topic(name)
        if found is not None:
            return found
    return None


class Retired(msgspec.Struct, frozen=True):
    """A retired topic, since when, what its log lacks by partition, and how many of its records never reached the
    tables."""

    topic: str
    since_ms: int
    gaps: dict[int, str] = {}
    unreplicated: int = 0


async def is_retired(store: Store, topic: str) -> bool:
    """Whether the topic, by its name in the log, is retired."""
    return store.tags is not None and await store.tags.setting(RETIRED + topic) is not None


async def retired_topics(store: Store) -> set[str]:
    """The names, in the log, of all retired topics."""
    if store.tags is None:
        return set()
    return {key.removeprefix(RETIRED) for key in await store.tags.settings(RETIRED)}


async def pinned_topic(parts: JournalParts, topic: str) -> Topic:
    """What is pinned for a topic, by its short name; JournalNotFound if there never was one."""
    journal = parts.config.journal
    pinned = {found.name: found for found in await parts.store.pinned()}
    found = pinned.get(journal.topic_prefix + topic)
    if found is None:
        known = ", ".join(sorted(journal.short(name) for name in pinned if journal.includes(name)))
        raise JournalNotFound(f"there is no topic {topic!r}; there are: {known or 'none yet'}")
    return found


async def retire(parts: JournalParts, topic: str, *, force: bool = False) -> Retired:
    """Retire a topic whose log is broken; `force`: or a sound one, if all of it is in the tables."""
    pinned = await pinned_topic(parts, topic)
    tables, now_ms = parts.store.tags, parts.clock.now_ms()
    if tables is None:
        raise InvalidInput("this store keeps no list of retired topics")
    damaged = await DamagedLog.look(parts.log, parts.store, pinned, topic)
    unreplicated = await damaged.unreplicated()
    known = await tables.setting(RETIRED + pinned.name)
    if known is None and not damaged.broken:
        if not force:
            raise InvalidInput(f"the topic {topic} is sound, and retiring it is final: say --force if you mean it")
        if unreplicated:
            raise NotReplicated(
                f"{unreplicated:,} records of the topic {topic} are not in the tables yet: stop its writers, "
                "let the pipeline finish ('everlog replicate --once'), then retire it"
            )
    since = await tables.pin(RETIRED + pinned.name, str(now_ms), now_ms)
    since_ms = int(since) if since.isdecimal() else 0
    return Retired(topic, since_ms, damaged.damage.gaps, unreplicated)
