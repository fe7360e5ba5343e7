"""Projections on Spark, with the real pipeline beside them: sums stay exact, whatever is repeated or taken over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

import everlog
from everlog import Event, Projection, on_spark, records, tag
from everlog.errors import InvalidProjection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.spark.runner import SparkProjections
from tests.conftest import Pipeline
from tests.pipeline.backends import Backend
from tests.waiting import until

SHOPS = 3
SALES = 120


class SparkProjectionSuite:
    """Subclass it with a fixture `backend`, and the statements of its store."""

    CREATE: ClassVar[str]
    GET: ClassVar[str]
    PUT: ClassVar[str]
    ALL: ClassVar[str]

    def sales(self, *, source: Any = None, fail: list[str] | None = None, max_events: int = 50) -> Projection:
        def handler(events: Any, view: Any) -> None:
            for shop, count in events.groupBy("id").count().collect():
                rows = view.fetch(self.GET, shop)
                view.execute(self.PUT, (rows[0][0] if rows else 0) + count, shop)
            if fail:
                raise ValueError(fail.pop())

        return Projection(
            "sales", source=source or tag("sale"), handler=handler, strategy=on_spark(max_events), tables=["sales"]
        )

    @contextmanager
    def heavy(self, backend: Backend, spark: Any, *projections: Projection) -> Iterator[SparkProjections]:
        running = SparkProjections(backend.config, projections, session=spark)
        running.start()
        try:
            yield running
        finally:
            running.stop()

    async def sell(self, log: Any, count: int = SALES) -> tuple[Counter[str], Any]:
        shops = [f"shop-{number % SHOPS}" for number in range(count)]
        for number, shop in enumerate(shops):
            token = await log.journal("shops").append(shop, Event({"cents": number}, tags={"sale"}))
        return Counter(shops), token

    async def found(self, log: Any) -> dict[str, int]:
        return {shop: count for shop, count in await log.projections.view("sales").fetch(self.ALL) if count is not None}

    async def test_a_tag_is_added_up_exactly(self, backend: Backend, pipeline: Pipeline, spark: Any) -> None:
        """Many batches, a handler that fails after it has written, a restart, a command: each event counts once."""
        async with everlog.connect(backend.config) as log:
            await log.projections.view("sales").execute(self.CREATE)
            expected, token = await self.sell(log)
            with pipeline(backend.config):
                fail = ["after its rows", "and once more"]
                with self.heavy(backend, spark, self.sales(fail=fail)) as running:
                    await log.projections.wait("sales", token, seconds=120)
                    assert await self.found(log) == expected
                    assert not fail
                    assert running.status()["sales"].restarts >= 1
                    await log.journal("shops").append("elsewhere", Event("untagged"))
                    token = await log.journal("shops").append("shop-1", Event("untagged"))
                    await log.projections.wait("sales", token, seconds=60)
                more, token = await self.sell(log, 20)
                with self.heavy(backend, spark, self.sales()):
                    await log.projections.wait("sales", token, seconds=120)
                    assert await self.found(log) == expected + more
                    await self.until_it_runs(log)
                    store = await log.projections.store()
                    await store.set_offset(ProjectionId("sales", "sale"), None)
                    await self.until_found(log, Counter({shop: 2 * n for shop, n in (expected + more).items()}))
            assert (await log.projections.get("sales")).state == "stopped"

    async def until_it_runs(self, log: Any) -> None:
        """Nothing is left to do; its owner says so at its next beat, which may come after the last batch."""

        async def runs() -> bool:
            status = await log.projections.get("sales")
            return (status.lag.events, status.state) == (0, "running")

        await until(runs, seconds=120, every=0.05)

    async def until_found(self, log: Any, expected: Counter[str]) -> None:
        async def equal() -> bool:
            return bool(await self.found(log) == expected)

        await until(equal, seconds=120, every=0.05)

    async def caught_up(self, log: Any, seen: Callable[[], bool]) -> None:
        """Everything is seen, and its offset is stored; the lag is told as soon as the owner has said what it reads."""

        async def stored() -> bool:
            return seen() and (lag := (await log.projections.get("seen")).lag) is not None and not lag.events

        await until(stored, seconds=120, every=0.05)

    async def test_the_records_of_a_topic(self, backend: Backend, spark: Any) -> None:
        """Read by the pipeline's own source; the offsets are those of the same projection without Spark."""
        seen: list[tuple[str, int]] = []

        def collect(batch: Any) -> None:
            seen.extend((row.key, row.offset) for row in batch.select("key", "offset").collect())

        def declared() -> Projection:
            return Projection("seen", source=records("shops"), handler=collect, strategy=on_spark())

        async with everlog.connect(backend.config) as log:
            expected, _ = await self.sell(log, 30)
            with self.heavy(backend, spark, declared()):
                await self.caught_up(log, lambda: len(seen) >= 30)
            assert Counter(key for key, _ in seen) == expected
            name = backend.topic("shops")
            offset = await log.projections.offset("seen")
            assert set(offset) <= {f"{name}-{partition}" for partition in range(2)}
            await log.journal("shops").append("shop-9", Event("x"))
            with self.heavy(backend, spark, declared()):
                await self.caught_up(log, lambda: len(seen) >= 31)
            assert [key for key, _ in seen[30:]] == ["shop-9"], "it went on where it was"

    async def test_what_cannot_run_on_spark_is_named(self, backend: Backend, spark: Any) -> None:
        async def handler(events: Any) -> None: ...

        def plain(events: Any, view: Any) -> None: ...

        with pytest.raises(InvalidProjection, match="plain function"):
            Projection("x", source=tag("sale"), handler=handler, strategy=on_spark())
        for source in (records("shops", split=2), everlog.slices(2)):
            projection = Projection("x", source=source, handler=plain, strategy=on_spark())
            with pytest.raises(InvalidProjection, match="one key"):
                SparkProjections(backend.config, [projection], session=spark)
        with pytest.raises(InvalidProjection, match="everlog projections run"):
            SparkProjections(backend.config, [Projection("x", source=tag("s"), handler=handler)], session=spark)
        async with everlog.connect(backend.config) as log:
            with pytest.raises(InvalidProjection, match="replicate --projections"):
                await log.projections.runner(self.sales())
