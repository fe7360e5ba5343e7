"""A task of the pipeline, without Spark around it: what it reads, what it reports, what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.config import Config
from everlog.core.head import Topic
from everlog.journal.topic_registry import pin_topic
from everlog.log.port import LogTopic
from everlog.log.range_reader import LogRange
from everlog.log.sqlite import range_reader
from everlog.pipeline import task as module
from everlog.pipeline.apply import Applied
from everlog.pipeline.replicator import Cycle
from everlog.pipeline.task import ApplyTask
from everlog.runtime.clock import SystemClock
from tests.support import small_config

NAME = "journal-orders"
KEYS = [f"order-{number}" for number in range(6)]
pytest.importorskip("pyspark")


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """What this process keeps for its tasks belongs to the test alone."""
    yield small_config(tmp_path / "data")
    for store in module._stores.values():
        module.run(store.close())
    for reader in module._readers.values():
        reader.close()
    module._stores.clear()
    module._readers.clear()


async def fill(config: Config) -> tuple[LogTopic, Topic, list[int]]:
    """Ten events in each of six journals; the topic, and where its partitions end."""
    async with everlog.connect(config) as log:
        for number in range(10):
            for key in KEYS:
                await log.journal("orders").append(key, Event(number))
        parts = log.parts
        (found,) = await parts.log.topics()
        topic = await pin_topic(parts.store, found, config, SystemClock())
        ends = [(await parts.log.bounds(found, partition)).end for partition in range(2)]
    return found, topic, ends


def run(config: Config, topic: Topic, ranges: Sequence[LogRange]) -> dict[str, Applied]:
    reports = ApplyTask(config, {NAME: topic}, [ranges])(0, iter(()))
    return {name: msgspec.json.decode(report, type=Applied) for name, report in reports}


async def heads(config: Config) -> dict[str, int]:
    async with everlog.connect(config) as log:
        found = {key: await log.parts.store.head(NAME, key) for key in KEYS}
    return {key: head.seq_nr for key, head in found.items() if head is not None}


def test_chunks_follow_each_other(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of one chunk are the beginning of the next: the fold does not depend on how the range is cut."""
    monkeypatch.setattr(range_reader, "MAX_CHUNK_RECORDS", 4)
    found, topic, ends = asyncio.run(fill(config))
    done = run(config, topic, [LogRange(found, number, 0, end) for number, end in enumerate(ends)])
    assert sum(one.records for one in done.values()) == sum(one.events for one in done.values()) == 60
    assert asyncio.run(heads(config)) == dict.fromkeys(KEYS, 10)
    assert {"read", "fold", "rows"} <= next(iter(done.values())).phases.keys()


def test_what_cannot_be_read_holds_up_only_its_partition(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported, with what was read before it applied; a task after it begins with a reader of its own."""
    monkeypatch.setattr(range_reader, "MAX_CHUNK_RECORDS", 4)
    found, topic, ends = asyncio.run(fill(config))
    beyond = LogRange(found, 0, 0, ends[0] + 3)
    done = run(config, topic, [beyond, LogRange(found, 1, 0, ends[1])])
    assert "the log has no records" in done[f"{NAME}/0"].failed[""]
    assert not done[f"{NAME}/1"].failed
    assert done[f"{NAME}/1"].events == ends[1]
    again = run(config, topic, [LogRange(found, 0, 0, ends[0])])[f"{NAME}/0"]
    assert not again.failed
    assert asyncio.run(heads(config)) == dict.fromkeys(KEYS, 10)


def test_an_error_that_no_one_expects_ends_the_task_and_its_reader(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark tells the driver; the next task in this process reads as if nothing had happened."""
    monkeypatch.setattr(range_reader, "MAX_CHUNK_RECORDS", 4)
    found, topic, ends = asyncio.run(fill(config))
    with monkeypatch.context() as patch:
        patch.setattr(module, "apply", None)
        with pytest.raises(TypeError):
            run(config, topic, [LogRange(found, 0, 0, ends[0])])
    assert not run(config, topic, [LogRange(found, 0, 0, ends[0])])[f"{NAME}/0"].failed


def cycle(*sizes: int) -> Cycle:
    topic = LogTopic("t", "id", len(sizes))
    return Cycle([LogRange(topic, number, 5, 5 + size) for number, size in enumerate(sizes)], {})


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [((1,), 1), ((1, 1, 1, 1), 1), ((300, 300, 1), 2), ((1_000, 900), 2), ((1_900,), 1), ((2_001, 1, 1), 2)],
)
def test_a_task_costs_more_than_a_few_records(sizes: tuple[int, ...], tasks: int) -> None:
    """Few records share a task, many have one for each partition; no partition is divided or left out."""
    found = cycle(*sizes).shares()
    assert len(found) == tasks
    assert all(found)
    assert sorted(one for share in found for one in share) == sorted(cycle(*sizes).ranges)
