"""Servers that die under load: nothing acknowledged is lost, doubled, reordered or read stale, and all goes on after.

Each test has a cluster of its own, because it kills servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import everlog
from everlog.cluster.local import LocalCluster
from everlog.config import Config, load_config
from tests.faults.history import check
from tests.faults.load import Load
from tests.fixtures.servers import running

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

OUTAGE_SECONDS = 60
ENOUGH = 300


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(tmp_path / "cluster") as cluster:
        yield cluster


def patient(config: Config) -> Config:
    """Time-outs short enough for a test to see them."""
    assert config.cassandra is not None
    assert config.kafka is not None
    return msgspec.structs.replace(
        config,
        journal=msgspec.structs.replace(config.journal, append_timeout_s=10.0, segment_size=10),
        pipeline=msgspec.structs.replace(config.pipeline, max_retry_s=2.0),
        cassandra=msgspec.structs.replace(config.cassandra, request_timeout_s=2.0, max_retries=2),
        kafka=msgspec.structs.replace(config.kafka, request_timeout_s=5.0),
    )


async def run(local: LocalCluster, pipeline, server: str, outage: float) -> Load:
    """Load, an outage of one server, load again; then everything is replicated and compared."""
    config = patient(load_config(local.config_file))
    async with everlog.connect(config) as log:
        load = Load(log)
        with pipeline(config) as replicator:
            load.start()
            await load.progress(ENOUGH)
            (victim,) = [one for one in local.servers() if one.name.startswith(server)]
            victim.process.kill()
            await asyncio.sleep(outage)
            await asyncio.to_thread(local.up)
            await load.progress(ENOUGH)
            await load.stop()
            replicated = await asyncio.to_thread(replicator.wait_until_replicated, 120)
            assert replicated, replicator.status
        findings = check(load.history, await load.final())
        assert not findings, findings
        status = await log.status()
        assert status.lag == 0
    return load


@pytest.mark.case("kafka-journal", 31)
async def test_the_store_is_away_for_a_minute(local, pipeline) -> None:
    """The one Cassandra node is killed under load and comes back after a minute."""
    load = await run(local, pipeline, "cassandra", OUTAGE_SECONDS)
    assert load.errors["Unreachable"] + load.errors["OutcomeUnknown"] > 0, "the outage was not felt at all"


async def test_the_broker_dies_and_comes_back(local, pipeline) -> None:
    """The one broker is killed under load: appends end as unknown at worst, and are found or stored once by a retry."""
    await run(local, pipeline, "kafka", 5)
