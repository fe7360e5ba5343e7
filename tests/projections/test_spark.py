"""Projections on Spark, on the embedded log and store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from everlog.config import Config, LogConfig, PipelineConfig, ProjectionsConfig
from tests.pipeline.backends import EmbeddedBackend
from tests.projections.spark_suite import SparkProjectionSuite

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def backend(tmp_path: Path) -> EmbeddedBackend:
    return EmbeddedBackend(
        Config(
            data=str(tmp_path / "data"),
            log=LogConfig(partitions=2),
            pipeline=PipelineConfig(min_retry_s=0.1),
            projections=ProjectionsConfig(lease_s=1.5),
        )
    )


class TestEmbedded(SparkProjectionSuite):
    CREATE = "CREATE TABLE sales (shop TEXT PRIMARY KEY, n INTEGER NOT NULL)"
    GET = "SELECT n FROM sales WHERE shop = ?"
    PUT = "INSERT INTO sales (n, shop) VALUES (?, ?) ON CONFLICT DO UPDATE SET n = excluded.n"
    ALL = "SELECT shop, n FROM sales"


def test_the_example_runs(tmp_path):
    words = [
        sys.executable,
        str(Path(__file__).parents[2] / "examples" / "projection_spark.py"),
        str(tmp_path / "data"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"shop-{nr}: 100 sales, {cents} cents" for nr, cents in enumerate((14850, 14950, 15050))],
    ), done.stderr
