"""Retired topics: nobody writes to them or replicates them any more, nobody waits for them, and they can still be read.

A retirement is final. The watermark of views by tag passes over what the topic still owed; if the topic came back, its
events would appear below the watermark, where nobody looks again. Whoever wants to go on copies the journals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from everlog.core.head import Topic
from everlog.core.plan import RETIRED
from everlog.errors import InvalidInput, JournalNotFound, NotReplicated
from everlog.journal.damaged_log import DamagedLog
from everlog.store.port import Store

if TYPE_CHECKING:
    from everlog.journal.parts import Parts


class Retired(msgspec.Struct, frozen=True):
    """A retired topic, since when, what its log lacks by partition, and how many records of it never got into the
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


async def pinned_topic(parts: Parts, topic: str) -> Topic:
    """What is pinned for a topic, by its short name; JournalNotFound if there never was one."""
    journal = parts.config.journal
    pinned = {found.name: found for found in await parts.store.pinned()}
    found = pinned.get(journal.topic_prefix + topic)
    if found is None:
        known = ", ".join(sorted(journal.short(name) for name in pinned if journal.includes(name)))
        raise JournalNotFound(f"there is no topic {topic!r}; there are: {known or 'none yet'}")
    return found


async def retire(parts: Parts, topic: str, *, force: bool = False) -> Retired:
    """Retire a topic whose log is broken; `force`: or a sound one, if all of it is in the tables."""
    pinned = await pinned_topic(parts, topic)
    tables, now_ms = parts.store.tags, parts.clock.now_ms()
    if tables is None:
        raise InvalidInput("this store keeps no list of retired topics")
    remains = await DamagedLog.look(parts.log, parts.store, pinned, topic)
    unreplicated = await remains.unreplicated()
    known = await tables.setting(RETIRED + pinned.name)
    if known is None and not remains.broken:
        if not force:
            raise InvalidInput(f"the topic {topic} is sound, and retiring it is final: say --force if you mean it")
        if unreplicated:
            raise NotReplicated(
                f"{unreplicated:,} records of the topic {topic} are not in the tables yet: stop those who write to it, "
                "let the pipeline finish ('everlog replicate --once'), then retire it"
            )
    since = await tables.pin(RETIRED + pinned.name, str(now_ms), now_ms)
    since_ms = int(since) if since.isdecimal() else 0
    return Retired(topic, since_ms, remains.damage.gaps, unreplicated)
