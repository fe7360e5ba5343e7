"""`tags rebuild` as the Spark job that it is."""

from __future__ import annotations

import asyncio

import pytest

import everlog
from everlog import Event
from everlog.config import Config
from everlog.tags.spark.rebuild import Rebuilt, rebuild
from everlog.testing.replication import replicate
from tests.support import small_config

pytestmark = pytest.mark.spark


async def fill(config: Config) -> list[object]:
    """Some journals with events of two tags; the views of one of them."""
    async with everlog.connect(config) as log:
        for number in range(60):
            await log.journal("orders").append(f"o-{number % 12}", [Event(number, tags={"t", "u"})])
        await log.journal("others").append("x", [Event("x", tags={"t"})])
        await replicate(log, batch=7)
        return [event async for event in log.tag("t").current()]


async def read(config: Config) -> list[object]:
    async with everlog.connect(config) as log:
        return [event async for event in log.tag("t").current()]


async def drop(config: Config) -> int:
    async with everlog.connect(config) as log:
        return await log.tag("t").drop()


@pytest.mark.case("tags-and-projections", 15, 47)
def test_a_lost_view_is_put_back(spark, tmp_path, monkeypatch) -> None:
    """All rows of a view are gone: a job over all journals puts them back where they were, and tells how far it is;
    done again, it changes nothing."""
    config = small_config(tmp_path / "data")
    before = asyncio.run(fill(config))
    assert asyncio.run(drop(config)) == 61
    monkeypatch.setattr("everlog.tags.spark.rebuild.JOURNALS_PER_JOB", 5)
    told: list[tuple[int, int]] = []
    done = rebuild(config, tags=["t"], session=spark, progress=lambda *found: told.append(found))
    assert done == Rebuilt(13, 61)
    assert told == [(5, 13), (10, 13), (13, 13)]
    assert asyncio.run(read(config)) == before
    assert rebuild(config, session=spark, topics=["orders"]) == Rebuilt(12, 0)


def test_nothing_to_rebuild(spark, tmp_path) -> None:
    config = small_config(tmp_path / "data")
    assert asyncio.run(read(config)) == []
    assert rebuild(config, session=spark) == Rebuilt()
