"""Projections over the records of a Kafka topic, with offsets on Cassandra."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from pathlib import Path

import pytest

import everlog
from everlog import Event
from tests.projections.test_record_source import collect, fill
from tests.waiting import until

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "projection_cassandra.py"


async def test_records_of_kafka_are_handled_once_and_go_on(cluster_config):
    """All records, in order per journal; after a restart only what is new; the token is waited for; the lag is told."""
    async with everlog.connect(cluster_config()) as log:
        expected, seen = await fill(log), []
        async with log.projections.run(collect(seen)):
            await until(lambda: len(seen) == len(expected))
            token = await log.journal("orders").append("o-1", Event("later"))
            await log.projections.wait("seen", token)
            assert seen[-1] == ("o-1", 5, "later")
        assert Counter(seen) == Counter([*expected, ("o-1", 5, "later")])
        for key in {one[0] for one in expected}:
            numbers = [one[1] for one in seen if one[0] == key]
            assert numbers == sorted(numbers)
        status = await log.projections.get("seen")
        assert (status.state, status.lag.events) == ("stopped", 0)
        await log.journal("orders").append("o-2", Event("new"))
        assert (await log.projections.get("seen")).lag.events == 1
        async with log.projections.run(collect(seen)):
            await until(lambda: seen[-1] == ("o-2", 5, "new"))
        assert len(seen) == len(expected) + 2


async def test_two_instances_share_a_topic(cluster_config):
    """Two keys, two runners; one ends, the other takes its key, and nothing is lost."""
    config = cluster_config()
    async with everlog.connect(config) as log, everlog.connect(config) as other:
        expected, seen = await fill(log), []
        first = await log.projections.runner(collect(seen, split=2))
        second = await other.projections.runner(collect(seen, split=2))
        first.start()
        second.start()
        await asyncio.gather(first.owns("seen", 1), second.owns("seen", 1))
        await until(lambda: len(set(seen)) == len(expected))
        await second.stop()
        await first.owns("seen", 2)
        more = await fill(log, events=1)
        await until(lambda: len(set(seen)) == len(expected) + len(more))
        await first.stop()


async def test_the_example_runs(cluster_config, capsys):
    """A view in Cassandra, read right after writing."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    await example.main(cluster_config())
    assert capsys.readouterr().out.splitlines() == ["bob owes 2500 cents", "alice owes 0 cents"]
