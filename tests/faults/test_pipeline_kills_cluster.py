"""Kill -9 of pipelines and of their workers at every labelled point, on a real broker and a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.runtime.failpoints import POINTS
from tests.conftest import Pipeline
from tests.faults.kills import BATCH, fill_in_kinds, kill_pipelines, kill_workers
from tests.fixtures.cluster import MakeConfig
from tests.pipeline.backends import ClusterBackend

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture
def backend(cluster_config: MakeConfig) -> ClusterBackend:
    return ClusterBackend(cluster_config(partitions=1))


@pytest.mark.case("kafka-journal", 31)
async def test_killed_in_the_middle(backend: ClusterBackend, tmp_path: Path, pipeline: Pipeline) -> None:
    """Killed before a batch of deletes is published. (At every other point: `make faults`.)"""
    await fill_in_kinds(backend.config)
    await kill_pipelines(backend, tmp_path / "runs", ["cycle.applied:2"], pipeline, most=BATCH)


@pytest.mark.faults
@pytest.mark.usefixtures("class_archive")
@pytest.mark.case("kafka-journal", 31)
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_every_point(backend: ClusterBackend, tmp_path: Path, pipeline: Pipeline, point: str) -> None:
    """One pipeline dies at this point of a batch of appends, the next one among deletes, the next among purges: the
    tables are those of a run without any crash, and no row is left over."""
    await fill_in_kinds(backend.config)
    # A pipeline that died before it published begins with the same batch again.
    again = [1, 1, 1] if point in ("cycle.published", "cycle.watermark") else [1, 2, 2]
    points = [f"{point}:{count}" for count in again]
    await kill_pipelines(backend, tmp_path / "runs", points, pipeline, most=BATCH)


@pytest.mark.faults
@pytest.mark.usefixtures("class_archive")
@pytest.mark.case("kafka-journal", 31)
@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith("apply.")])
async def test_workers_killed_at_every_point(backend: ClusterBackend, tmp_path: Path, point: str) -> None:
    """A worker dies at this point of the batch of appends, its successor among the deletes, and the next one among the
    purges; the pipeline lives on and repeats each of these batches."""
    await fill_in_kinds(backend.config)
    # Each worker but the first begins with the batch that its predecessor died in.
    await kill_workers(backend, tmp_path / "runs", point, [1, 2, 2], most=BATCH)
