"""Kill -9 of the whole pipeline at every labelled point, on the embedded log and store."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.config import Config, JournalConfig, LogConfig
from everlog.runtime.failpoints import POINTS
from tests.conftest import Pipeline
from tests.faults.kills import kill_pipelines
from tests.pipeline.backends import EmbeddedBackend
from tests.pipeline.suite import fill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def backend(tmp_path: Path) -> EmbeddedBackend:
    journal, log = JournalConfig(segment_size=3), LogConfig(partitions=2)
    return EmbeddedBackend(Config(data=str(tmp_path / "data"), journal=journal, log=log))


@pytest.mark.faults
@pytest.mark.usefixtures("class_archive")
@pytest.mark.case("kafka-journal", 31)
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_every_point(backend: EmbeddedBackend, tmp_path: Path, pipeline: Pipeline, point: str) -> None:
    """At each labelled point, in the first batch and in a later one: no lost and no doubled row, reads as ever."""
    await fill(backend.config)
    await kill_pipelines(backend, tmp_path / "runs", [point, f"{point}:2"], pipeline, most=60)
