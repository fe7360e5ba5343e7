"""Projections on Spark, on the embedded log and store."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog import Event
from everlog.config import Config, LogConfig, PipelineConfig, ProjectionsConfig
from everlog.errors import InvalidProjection
from everlog.projections.spark.feeds import feed_of
from everlog.testing import replicate
from tests.pipeline.backends import Backend, EmbeddedBackend
from tests.projections.spark_suite import SparkProjectionSuite
from tests.projections.typed_shop import Sent, Shipped

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

    async def test_old_versions_become_new_ones_in_the_tasks(self, backend: Backend, spark: Any) -> None:
        """Batches have one version of each type; a class of a function travels to the workers as well."""
        seen: list[tuple[Any, ...]] = []

        @everlog.event("sold", version=3)
        @dataclass
        class Sold:
            cents: int

        @everlog.upcast(Sold, 1)
        def renamed(old: dict[str, int]) -> dict[str, int]:
            return {"euros": old["price"]}

        @everlog.upcast(Sold, 2)
        def in_cents(old: dict[str, int]) -> dict[str, int]:
            return {"cents": 100 * old["euros"]}

        def collect(batch: Any) -> None:
            seen.extend(tuple(row) for row in batch.select("type", "type_version", "payload").collect())

        async with everlog.connect(backend.config) as log:
            sold = [Event(Sold(5), tags={"sale"})]
            sold += [
                Event({"price": 2}, tags={"sale"}, type="sold"),
                Event({"euros": 3}, tags={"sale"}, type="sold", type_version=2),
            ]
            sold += [Event({"a": 1}, tags={"sale"}, type="other", type_version=7), Event("text", tags={"sale"})]
            await log.journal("shops").append("shop", sold)
            await log.journal("shops").append("shop", Event(Sent("Mill Lane, Oxford"), tags={"sale"}))
            await replicate(log)
            source = everlog.tag("sale", [Sold, Shipped])
            declared = everlog.Projection("seen", source=source, handler=collect, strategy=everlog.on_spark())
            with self.heavy(backend, spark, declared):
                await self.caught_up(log, lambda: len(seen) >= 6)
        assert seen == [
            ("sold", 3, '{"cents":5}'),
            ("sold", 3, '{"cents":200}'),
            ("sold", 3, '{"cents":300}'),
            ("other", 7, '{"a":1}'),
            (None, None, "text"),
            ("shipped", 2, '{"street":"Mill Lane","town":"Oxford"}'),
        ]


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


def test_a_class_that_tasks_cannot_import_is_named() -> None:
    @everlog.event("sent")
    @dataclass
    class Old:
        to: str

    @everlog.event("new")
    @dataclass
    class New:
        to: str

    @everlog.upcast(New, Old)
    def renewed(old: Old) -> New:
        return New(old.to)

    with pytest.raises(InvalidProjection, match="tasks must import Old"):
        feed_of(Config(), everlog.tag("sale", New), 100)
