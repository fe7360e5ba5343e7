"""Events of a Kafka topic that count, by verdicts in Cassandra, and views of them there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import everlog
from everlog import Event, Projection, events, exactly_once
from everlog.api import Everlog
from everlog.client import connect
from everlog.errors import LogTruncated
from everlog.projections.lifecycle import Restart
from everlog.testing import replicate
from everlog.testing.topic_events import TOPIC, TopicEventsConformance, TopicHistory, TopicReader
from tests.fixtures.cluster import MakeConfig
from tests.fixtures.kafka import trim

pytestmark = pytest.mark.cluster

TABLE = "CREATE TABLE owed (region text, id text, cents bigint, everlog_mark text static, PRIMARY KEY (region, id))"
READ = "SELECT cents FROM owed WHERE region = ? AND id = ?"
WRITE = "UPDATE owed SET cents = ? WHERE region = ? AND id = ?"


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Of these tests alone: those that leave a batch unpublished hold the watermark of all."""
    return f"j{secrets.token_hex(5)}"


class TestClusterTopicEvents(TopicEventsConformance):
    @pytest.fixture
    async def everlog(self, shared_config: MakeConfig, keyspace: str) -> AsyncIterator[Everlog]:
        config = shared_config()
        assert config.cassandra is not None
        cassandra = msgspec.structs.replace(config.cassandra, keyspace=keyspace)
        async with connect(msgspec.structs.replace(config, cassandra=cassandra)) as log:
            yield log

    # All of them run on the embedded backend; log and store pass suites of their own here.
    test_events_that_count_come_once = pytest.mark.parametrize(
        "condition", ["store empty", "two behind", "content ahead of pointer", "replayed"]
    )(TopicEventsConformance.come_once)
    test_random_histories = pytest.mark.parametrize("seed", [7])(TopicEventsConformance.random_history)


async def test_records_that_left_the_log_take_their_verdicts_along(cluster_config: MakeConfig) -> None:
    """Kafka removes records by itself; `expire` then removes the verdicts on them, and what is missing is named."""
    async with everlog.connect(cluster_config(partitions=1)) as log:
        history = await TopicHistory.begin(log)
        await history.append("a", 1)
        await history.append("a", 1)
        await history.append("a", 2)
        await history.append("a", 2)
        await replicate(log)
        name = log.config.journal.topic_prefix + TOPIC
        topic = await log.parts.log.topic(name)
        assert topic is not None
        await asyncio.to_thread(trim, log.config, topic, 0, 2)
        await log.expire()
        reader = TopicReader(log.parts)
        with pytest.raises(LogTruncated, match="records 0 to 1 are gone"):
            await reader.read({0: 4})
        reader.stored = {f"{name}-0": 1}
        await reader.read({0: 4})
        assert [(one.offset, one.seq_nr) for one in reader.came] == [(2, 2)]


async def test_a_view_in_cassandra_counts_each_event_of_an_append_once(cluster_config: MakeConfig) -> None:
    """Windows end inside appends, and the handler fails after it wrote: the marks know the places between events."""
    calls = 0

    async def count(event: Any, view: Any) -> None:
        nonlocal calls
        calls += 1
        rows = await view.fetch(READ, "eu", event.id)
        await view.execute(WRITE, ((rows[0][0] or 0) if rows else 0) + event.payload["cents"], "eu", event.id)
        if calls % 5 == 0:
            raise ValueError("after it wrote")

    async with everlog.connect(cluster_config()) as log:
        view, invoices = log.projections.view("owed"), log.journal("invoices")
        await view.execute(TABLE)
        projection = Projection(
            "owed",
            source=events("invoices"),
            handler=count,
            strategy=exactly_once(size=2),
            restart=Restart(min_s=0.01, max_s=0.01),
        )
        tokens = [
            await invoices.append(customer, [Event({"cents": 1}) for _ in range(3)])
            for _ in range(2)
            for customer in "abc"
        ]
        await invoices.append("a", Event({"cents": 100}, seq_nr=1), verdict=False)  # it loses
        async with log.projections.run(projection):
            for token in tokens:
                await log.projections.wait("owed", token)
        assert calls > 18
        for customer in "abc":
            assert await view.fetch(READ, "eu", customer) == [(6,)]
