"""Tags and slices as sources of projections, on the embedded log, store and views."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everlog
from everlog import Event, at_least_once
from everlog.config import TagsConfig
from everlog.errors import InvalidOffset, InvalidProjection, InvalidTag
from everlog.projections.projection import Projection
from everlog.projections.recovery import Recovery
from everlog.testing import replicate
from tests.support import small_config

Seen = list[tuple[str, int]]


def collecting(seen: Seen, source: Any, *, failing: bool = False) -> Projection:
    async def take(event: everlog.TaggedEvent) -> None:
        if failing and event.id == "bad":
            raise ValueError("poison")
        seen.append((event.id, event.seq_nr))

    return everlog.projection(
        "seen", source=source, strategy=at_least_once(save_every=1), recovery=Recovery.skip() if failing else None
    )(take)


async def append(log: everlog.Everlog, journal_id: str, *tags: str) -> everlog.Position:
    return await log.journal("orders").append(journal_id, [Event({"id": journal_id}, tags=set(tags))])


async def test_a_tag_is_followed_from_the_stored_offset_on(tmp_path: Path) -> None:
    """Untagged events are passed, too: whoever waits for their token is not left waiting."""
    seen: Seen = []
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        for journal_id, tags in (("a", ["eu"]), ("b", ["us"]), ("a", ["eu", "us"])):
            await append(log, journal_id, *tags)
        untagged = await append(log, "c")
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await replicate(log)
            await log.projections.wait("seen", untagged)
            assert seen == [("a", 1), ("a", 2)]
        token = await append(log, "d", "eu")
        await replicate(log)
        (known,) = await log.projections.list("seen")
        assert known.lag is not None
        assert known.lag.events == 1
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await log.projections.wait("seen", token)
        assert seen == [("a", 1), ("a", 2), ("d", 1)]


async def test_slices_are_all_events_in_parts(tmp_path: Path) -> None:
    """Four keys share the journals; each event is handled once, those of a journal in their order."""
    seen: Seen = []
    config = msgspec.structs.replace(small_config(tmp_path / "data"), tags=TagsConfig(slices=True))
    async with everlog.connect(config) as log:
        tokens = [await append(log, f"j{number % 7}") for number in range(21)]
        async with log.projections.run(collecting(seen, everlog.slices(4))):
            await replicate(log)
            for token in tokens:
                await log.projections.wait("seen", token)
        assert sorted(seen) == sorted((f"j{number}", seq_nr) for number in range(7) for seq_nr in (1, 2, 3))
        for number in range(7):
            assert [seq_nr for journal_id, seq_nr in seen if journal_id == f"j{number}"] == [1, 2, 3]
        assert len(await log.projections.list("seen")) == 4


async def test_a_dead_letter_comes_back_as_it_was(tmp_path: Path) -> None:
    seen: Seen = []
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        await append(log, "bad", "eu")
        token = await append(log, "good", "eu")
        async with log.projections.run(collecting(seen, everlog.tag("eu"), failing=True)):
            await replicate(log)
            await log.projections.wait("seen", token)
        assert seen == [("good", 1)]
        (letter,) = await log.projections.dead_letters("seen")
        assert letter.payload is not None
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await log.projections.replay("seen")
            async with asyncio.timeout(60):
                while await log.projections.dead_letters("seen"):  # noqa: ASYNC110 - another task answers the letter
                    await asyncio.sleep(0.01)
        assert seen == [("good", 1), ("bad", 1)]


async def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidTag):
        everlog.tag("")
    with pytest.raises(InvalidProjection, match="power of two"):
        everlog.slices(3)
    with pytest.raises(InvalidProjection, match="open log"):
        everlog.tag("eu").open(None)
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        feed = everlog.tag("eu").open(log.parts)
        with pytest.raises(InvalidOffset, match="time-UUID"):
            await anext(aiter(feed.read("eu", 5)))
        await feed.close()
