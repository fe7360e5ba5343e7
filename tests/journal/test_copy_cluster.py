"""A topic of a real Kafka that was deleted and made again: refused, copied, retired, and everybody goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import everlog
from everlog import Event, TopicRetired
from everlog.api import Everlog
from everlog.errors import TopicReplaced
from everlog.journal.spark.copy_job import CopyReport, copy
from everlog.testing.replication import replicate
from tests.conftest import Pipeline
from tests.fixtures.cluster import MakeConfig
from tests.fixtures.kafka import make_topic, remove_topic
from tests.journal.copy_support import states_of
from tests.pipeline.backends import ClusterBackend
from tests.pipeline.suite import TOPIC, WAIT
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(300)]


async def fill(log: Everlog) -> dict[str, Any]:
    """A bit of everything; the last batch was planned and applied, and then its pipeline died. What readers see."""
    journal = log.journal(TOPIC)
    for number in range(30):
        payload = [number, b"\x00\xff", f"text {number}", None][number % 4]
        headers = {"trace": "ü"} if number % 5 == 0 else None
        await journal.append(f"o-{number % 5}", [Event(payload, tags={"t"}), Event({"n": number})], headers=headers)
    await journal.append("gaps", [Event(1, seq_nr=4, tags={"t"}), Event(2, seq_nr=9)], metadata={"m": 1})
    await journal.delete("o-1", to=5)
    await journal.append("emptied", [Event(1), Event(2)], expire_after=timedelta(days=30))
    await journal.snapshots.save("emptied", seq_nr=2, payload={"state": 7})
    await journal.delete("emptied")
    await journal.append("purged", Event(1))
    await journal.purge("purged")
    await replicate(log, leave=2)
    await replicate(log, publish=False)
    return await states_of(log, TOPIC)


async def tagged(log: Everlog) -> list[tuple[str, str, int]]:
    return [(found.topic, found.id, found.event.seq_nr) async for found in log.tag("t").current()]


async def test_a_topic_that_is_made_again_is_copied_and_retired(
    cluster_config: MakeConfig, spark: Any, pipeline: Pipeline
) -> None:
    backend = ClusterBackend(cluster_config())
    config, name = backend.config, backend.topic(TOPIC)
    async with everlog.connect(config) as log:
        originals = await fill(log)
    await asyncio.to_thread(remove_topic, config, name)
    async with everlog.connect(config) as log:

        async def gone() -> bool:
            return await log.parts.log.topic(name) is None

        await until(gone, seconds=WAIT, every=0.05)
        with pytest.raises(TopicReplaced, match="everlog journal copy orders NEW"):
            await log.journal(TOPIC).pointer("o-1")
        await asyncio.to_thread(make_topic, config, name, {})
        with pytest.raises(TopicReplaced, match="everlog journal copy orders NEW"):
            await log.journal(TOPIC).append("o-1", Event("in vain"))
        with pipeline(config) as running:
            await log.journal("others").append("b", Event(3, tags={"t"}))
            assert running.wait_until_replicated(WAIT), running.status
            assert "everlog journal retire orders" in running.status.left_out[name]
            before = await tagged(log)
            assert running.status.tags_wait_for
            assert ("others", "b", 1) not in before
            done = await asyncio.to_thread(copy, config, TOPIC, "copies", session=spark)
            events = sum(len(state["events"]) for state in originals.values())
            assert done == CopyReport(len(originals), events, gaps=dict.fromkeys(range(2), "the topic was made again"))
            await log.retire(TOPIC)

            wanted = sorted(
                (key, one["seq_nr"]) for key in originals for one in originals[key]["events"] if one["tags"]
            )

            async def left() -> bool:
                copied = sorted((key, seq_nr) for topic, key, seq_nr in await tagged(log) if topic == "copies")
                # Readers see the watermark a moment before the status knows that nothing holds it any more.
                status = running.status
                return not status.left_out and not status.tags_wait_for and copied == wanted

            await until(left, seconds=WAIT, every=0.05)
            after = await tagged(log)
            assert after[: len(before)] == before
            assert ("others", "b", 1) in after
            assert running.wait_until_replicated(WAIT), running.status
        assert await states_of(log, "copies") == originals
        assert await states_of(log, TOPIC) == originals
        assert (await log.journal("copies").append("emptied", Event(3))).range.first == 3
        assert (await log.journal("copies").recover("emptied")).snapshot is not None
        with pytest.raises(TopicRetired):
            await log.journal(TOPIC).append("o-1", Event("in vain"))
        status = await log.status()
        assert (status.retired, status.pipeline.left_out) == ([TOPIC], {})
        again = await asyncio.to_thread(copy, config, TOPIC, "copies", session=spark)
        assert (again.events, again.failed, again.failures[0].id) == (0, 1, "emptied")
