"""Slices divided anew on Kafka and Cassandra: a view counts every event once, also if a save is cut off in between."""

from __future__ import annotations

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.config import ProjectionsConfig, TagsConfig
from everlog.errors import OwnershipLost
from everlog.projections.lifecycle import Restart
from everlog.projections.projection import Projection
from everlog.testing import replicate
from tests.waiting import until

pytestmark = pytest.mark.cluster

CREATE = """
CREATE TABLE counted (grp text, id text, seq_nr int, n int, everlog_mark text static, PRIMARY KEY (grp, id, seq_nr))
"""
GET = "SELECT n FROM counted WHERE grp = ? AND id = ? AND seq_nr = ?"
PUT = "INSERT INTO counted (grp, id, seq_nr, n) VALUES (?, ?, ?, ?)"


def counting(split: int) -> Projection:
    async def count(event: everlog.TaggedEvent, view) -> None:
        place = (str(len(event.id)), event.id, event.seq_nr)
        rows = await view.fetch(GET, *place)
        await view.execute(PUT, *place, (rows[0][0] if rows else 0) + 1)

    source, strategy, restart = everlog.slices(split), everlog.exactly_once(size=5), Restart(min_s=0.1, max_s=0.1)
    return Projection("counted", source=source, handler=count, strategy=strategy, restart=restart)


async def write(log, count: int = 25) -> everlog.Position:
    for number in range(count):
        token = await log.journal("orders").append(f"j{number}", Event("x"))
    await replicate(log)
    return token


async def counts(log) -> tuple[int, int]:
    """How many events were counted, and how often in all."""
    rows = await log.projections.view("counted").fetch("SELECT n FROM counted")
    return len(rows), sum(n for (n,) in rows)


async def test_every_event_counts_once_over_divisions(cluster_config, monkeypatch):
    config = msgspec.structs.replace(
        cluster_config(),
        tags=TagsConfig(slices=True, poll_interval_s=0.02),
        projections=ProjectionsConfig(lease_s=3.0, poll_interval_s=0.05),
    )
    async with everlog.connect(config) as log:
        await log.projections.view("counted").execute(CREATE)
        total = 0
        for split in (2, 4, 1):
            await write(log)
            total += 25
            async with log.projections.run(counting(split)):
                await until(lambda: has(log, total))  # noqa: B023
        # The next owner stores rows, and no offset: the one after it, of another division, finds them there.
        await write(log)
        total += 25
        store = await log.projections.store()
        save = type(store).save

        async def cut_off(self, lease, progress):
            raise OwnershipLost(lease.name, lease.epoch)

        monkeypatch.setattr(type(store), "save", cut_off)
        async with log.projections.run(counting(2)):
            await until(lambda: has(log, total - 23, at_least=True))
        monkeypatch.setattr(type(store), "save", save)
        async with log.projections.run(counting(4)):
            token = await write(log)
            total += 25
            await until(lambda: has(log, total))
            await log.projections.wait("counted", token)
        assert await counts(log) == (total, total)
        assert len(await log.projections.list("counted")) == 4


async def has(log, events: int, *, at_least: bool = False) -> bool:
    rows, total = await counts(log)
    assert rows == total, "each event once"
    return rows >= events if at_least else rows == events
