"""The pipeline on a Spark cluster: a master and two workers, one of which may die."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from tests.faults.kills import run
from tests.fixtures.cluster import MakeConfig
from tests.pipeline.backends import ClusterBackend
from tests.pipeline.class_archive import SHORT_LIVED
from tests.pipeline.standalone import Standalone, standalone
from tests.pipeline.suite import check_tables, fill, in_batches

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(600)]

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # Both are to have a part in it: nothing begins before both are there, and no task waits for the worker that read
    # its partition before.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.locality.wait": "0s",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
}


@pytest.fixture
def backend(cluster_config: MakeConfig) -> ClusterBackend:
    return ClusterBackend(cluster_config(partitions=2))


async def replicate_on(cluster: Standalone, backend: ClusterBackend, folder: Path) -> None:
    spark = msgspec.structs.replace(backend.config.spark, master=cluster.url, conf=CONF)
    # A small cycle is one task, and Spark takes any free worker for it: with so many cycles both get some.
    config = msgspec.structs.replace(in_batches(backend.config, 8), spark=spark)
    assert run(config, folder) == 0, (folder / "pipeline.out").read_text()[-3000:]
    await check_tables(backend)


@pytest.mark.faults  # the next test shows the same and more, as long as none of it is broken
async def test_two_workers(backend: ClusterBackend, tmp_path: Path) -> None:
    """What a log partition needs travels to whichever worker gets it."""
    await fill(backend.config)
    with standalone(tmp_path / "spark", [None, None]) as cluster:
        await replicate_on(cluster, backend, tmp_path / "run")
        assert cluster.executors(0)
        assert cluster.executors(1)


@pytest.mark.case("kafka-journal", 31)
async def test_a_worker_dies_in_the_middle_of_a_batch(backend: ClusterBackend, tmp_path: Path) -> None:
    """One of two workers dies with everything that runs on it, between rows and heads of its second task: the other
    one does its work, and the tables are those of a run without any crash."""
    await fill(backend.config)
    with standalone(tmp_path / "spark", [None, "apply.rows:2"]) as cluster:
        await replicate_on(cluster, backend, tmp_path / "run")
        assert cluster.workers[0].poll() is None
        assert cluster.workers[1].wait(60) == -signal.SIGKILL
