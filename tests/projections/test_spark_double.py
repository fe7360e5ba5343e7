"""Projections on Spark without Spark: the source, the batches, the leases, against a double of Structured Streaming.

The double asks the source for offsets, writes them down, reads the partitions and calls `foreachBatch`, as Spark does.
The real one runs the same in test_spark.py and test_spark_cluster.py.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import pytest

import everlog
from everlog import Event, Projection, on_spark, tag
from everlog.config import PipelineConfig, ProjectionsConfig, TagsConfig
from everlog.core.timeuuid import TimeUuid
from everlog.errors import InvalidProjection
from everlog.projections.port import Lease, OffsetStore, Report
from everlog.projections.projection_id import ProjectionId
from everlog.projections.sqlite.offset_store import SqliteOffsetStore
from everlog.testing.replication import replicate
from tests.support import small_config

pytest.importorskip("pyspark")

from everlog.projections.spark import runner as on_spark_module
from everlog.projections.spark.runner import SparkProjections
from everlog.tags.spark import stream
from everlog.tags.spark.stream import TagReader
from tests.waiting import until


class Batch:
    """A DataFrame, as far as a handler of these tests goes."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows

    def persist(self) -> None: ...

    def unpersist(self) -> None: ...

    def count(self) -> int:
        return len(self.rows)


class Query:
    """A query at work, in a thread of its own."""

    def __init__(self, stream: Stream, checkpoint: Path) -> None:
        self._stream = stream
        self._checkpoint = checkpoint
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self.isActive = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error
        finally:
            self.isActive = False
            for store in stream._stores.values():
                stream._run(store.close())
            stream._stores.clear()
            while stream._runners:
                stream._runners.pop().close()

    def _work(self) -> None:
        reader = TagReader({"everlog": self._stream.options["everlog"]})
        (self._checkpoint / "offsets").mkdir()
        at, number = reader.initialOffset(), 0
        while not self._stopping.wait(0.005):
            end = json.loads(json.dumps(reader.latestOffset(at)))
            if end == at:
                continue
            (self._checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
            rows = [
                row for part in reader.partitions(at, end) for page in reader.read(part) for row in page.to_pylist()
            ]
            self._stream.sizes.append(len(rows))
            self._stream.function(Batch(rows), number)
            at, number = end, number + 1

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Stream:
    """A session, its streams, and their writer, in one."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.sizes: list[int] = []

    @property
    def same(self) -> Stream:
        return self

    dataSource = readStream = writeStream = same  # noqa: N815

    def register(self, source: type) -> None: ...

    def format(self, name: str) -> Stream:
        assert name == stream.FORMAT
        return self

    def option(self, name: str, value: str) -> Stream:
        self.options[name] = value
        return self

    def load(self) -> Stream:
        return self

    def trigger(self, **_) -> Stream:
        return self

    def foreachBatch(self, function) -> Stream:  # noqa: N802
        self.function = function
        return self

    def start(self) -> Query:
        return Query(self, Path(urlparse(self.options["checkpointLocation"]).path))


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "PATIENCE_S", 0.05)
    monkeypatch.setattr(on_spark_module, "CHECK_S", 0.01)
    return msgspec.structs.replace(
        small_config(tmp_path / "data"),
        tags=TagsConfig(poll_interval_s=0.005),
        pipeline=PipelineConfig(min_retry_s=0.01, max_retry_s=0.01),
        projections=ProjectionsConfig(lease_s=1.5, poll_interval_s=0.02),
    )


class Running:
    """`with Running(config, …) as running:` projections on the double."""

    def __init__(self, config, *projections: Projection) -> None:
        self.spark = Stream()
        self._heavy = SparkProjections(config, projections, session=self.spark)

    def __enter__(self) -> Running:
        self._heavy.start()
        return self

    def __exit__(self, *_) -> None:
        self._heavy.stop()

    def report(self):
        return self._heavy.status()["sales"]


def sales(
    *, fail: list[str] | None = None, max_events: int = 7, seen: list | None = None, source: Any = None
) -> Projection:
    def handler(events: Batch, view) -> None:
        if seen is not None:
            seen.append([row["offset"] for row in events.rows])
        for shop, count in Counter(row["id"] for row in events.rows).items():
            rows = view.fetch("SELECT n FROM sales WHERE shop = ?", shop)
            put = "INSERT INTO sales VALUES (?, ?) ON CONFLICT DO UPDATE SET n = excluded.n"
            view.execute(put, shop, (rows[0][0] if rows else 0) + count)
        if fail:
            raise ValueError(fail.pop())

    source, strategy = source or tag("sale"), on_spark(max_events)
    return Projection("sales", source=source, handler=handler, strategy=strategy, tables=["sales"])


async def sell(log, count: int) -> tuple[Counter, everlog.Token]:
    shops = [f"shop-{number % 3}" for number in range(count)]
    for number, shop in enumerate(shops):
        token = await log.journal("shops").append(shop, Event({"n": number}, tags={"sale"}))
        await log.journal("shops").append("others", Event("untagged"))
    await replicate(log)
    return Counter(shops), token


async def found(log) -> dict[str, int]:
    return dict(await log.projections.view("sales").fetch("SELECT shop, n FROM sales"))


async def make_table(log) -> None:
    await log.projections.view("sales").execute("CREATE TABLE sales (shop TEXT PRIMARY KEY, n INTEGER NOT NULL)")


async def until_found(log, expected) -> None:
    async def equal() -> bool:
        return await found(log) == expected

    await until(equal)


async def test_batches_are_added_up_exactly(config):
    """Of bounded size, in order; a failed one is done again; after a restart it goes on; tokens are waited for."""
    async with everlog.connect(config) as log:
        await make_table(log)
        expected, token = await sell(log, 30)
        fail, seen = ["after its rows", "once more"], []
        with Running(config, sales(fail=fail, seen=seen)) as running:
            await log.projections.wait("sales", token)
            assert await found(log) == expected
            assert (fail, running.report().restarts) == ([], 2)
            assert max(running.spark.sizes) <= 7
            done = [TimeUuid.parse(offset) for batch in seen[2:] for offset in batch]
            assert done == sorted(set(done))
            assert len(done) == 30
            token = await log.journal("shops").append("others", Event("untagged"))
            await replicate(log)
            await log.projections.wait("sales", token)
        assert (await log.projections.get("sales")).state == "stopped"
        more, token = await sell(log, 5)
        with Running(config, sales()) as running:
            await log.projections.wait("sales", token)
            assert sum(running.spark.sizes) == 5
        assert await found(log) == expected + more
        status = await log.projections.get("sales")
        assert (status.lag.events, status.handled) == (0, 5)


async def test_commands_are_followed(config):
    """Set back, it counts again; paused, it does nothing; all through the store."""
    async with everlog.connect(config) as log:
        await make_table(log)
        expected, token = await sell(log, 10)
        with Running(config, sales()):
            await log.projections.wait("sales", token)
            await log.projections.clear("sales")
            await until_found(log, {shop: 2 * n for shop, n in expected.items()})
            await log.projections.pause("sales", wait_s=20)
            assert (await log.projections.get("sales")).state == "paused"
            more, _ = await sell(log, 3)
            await asyncio.sleep(0.2)  # a batch takes a tenth of it
            assert await found(log) == {shop: 2 * n for shop, n in expected.items()}
            await log.projections.resume("sales", wait_s=20)
            await until_found(log, {shop: 2 * n + more[shop] for shop, n in expected.items()})


@asynccontextmanager
async def robbed(store: OffsetStore) -> AsyncIterator[None]:
    """Another owner has the projection, and keeps it. Its present owner may beat right before it is taken."""
    lease: Lease | None = None
    while lease is None:
        seen = (await store.leases("sales"))["sale"]
        lease = await store.take(ProjectionId("sales", "sale"), "robber", seen)

    async def keep(lease: Lease | None) -> None:
        while lease is not None:
            await asyncio.sleep(0.1)
            lease = await store.renew(lease, Report())

    keeping = asyncio.create_task(keep(lease))
    try:
        yield
        assert not keeping.done()
    finally:
        keeping.cancel()


async def test_one_owner_at_a_time(config):
    """Another one waits until the first has gone; a dead one's lease runs out; a batch of a deposed one is refused."""
    async with everlog.connect(config) as log:
        await make_table(log)
        store = await log.projections.store()
        assert await store.take(ProjectionId("sales", "sale"), "dead", None) is not None
        expected, token = await sell(log, 6)
        with Running(config, sales()) as first:
            await log.projections.wait("sales", token)
            with Running(config, sales()) as second:
                time.sleep(0.1)  # noqa: ASYNC251
                assert second.spark.sizes == []
                first.__exit__()
                more, token = await sell(log, 4)
                await log.projections.wait("sales", token)
                assert sum(second.spark.sizes) == 4
                async with robbed(store):
                    await sell(log, 2)
                    await asyncio.sleep(0.3)
                    assert await found(log) == expected + more, "it is somebody else's now"


async def test_a_batch_that_may_be_half_stored_is_taken_up_as_it_was(config, monkeypatch):
    """Where a store keeps partitions apart: the same events again, whatever came since, though more would fit."""
    monkeypatch.setattr(SqliteOffsetStore, "stores_whole", False)
    async with everlog.connect(config) as log:
        await make_table(log)
        _, token = await sell(log, 4)
        seen, fail = [], ["cut off"] * 3
        with Running(config, sales(fail=fail, seen=seen, max_events=100)):
            async with asyncio.timeout(60):
                while len(seen) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            _, token = await sell(log, 5)
            await log.projections.wait("sales", token)
        assert {len(batch) for batch in seen[:4]} == {4}
        assert seen[0] == seen[1] == seen[2] == seen[3]
        assert [len(batch) for batch in seen[4:]] == [5]
        await sell(log, 2)
        fail = ["cut off"] * 100
        with Running(config, sales(fail=fail, max_events=100)):
            async with asyncio.timeout(60):
                while len(fail) == 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await log.projections.clear("sales")
        _, token = await sell(log, 3)
        with Running(config, sales(max_events=100)) as running:
            await log.projections.wait("sales", token)
            assert running.spark.sizes[0] == 14, "what was planned from elsewhere does not count"


async def test_slices_move_to_spark_and_back_in_another_division(config):
    """Two keys of slices off Spark, one on Spark, four off it: every event counts once."""
    config = msgspec.structs.replace(config, tags=TagsConfig(poll_interval_s=0.005, slices=True))

    async def handler(event, view) -> None:
        put = "INSERT INTO sales VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1"
        await view.execute(put, event.id)

    def off_spark(split: int) -> Projection:
        source, strategy = everlog.slices(split), everlog.exactly_once()
        return Projection("sales", source=source, handler=handler, strategy=strategy, tables=["sales"])

    async with everlog.connect(config) as log:
        await make_table(log)
        expected = Counter()
        for split in (2, 1, 4, 1):
            more, token = await sell(log, 12)
            expected += more + Counter({"others": 12})
            if split == 1:
                with Running(config, sales(source=everlog.slices(1))):
                    await until_found(log, expected)
                    await log.projections.wait("sales", token)
            else:
                async with log.projections.run(off_spark(split)):
                    await until_found(log, expected)
                    await log.projections.wait("sales", token)
            assert await found(log) == expected
        assert [one.key for one in await log.projections.list("sales")] == ["0-1023"]


async def test_another_version_does_not_write_to_the_view(config):
    async with everlog.connect(config) as log:
        await make_table(log)
        expected, token = await sell(log, 3)
        with Running(config, sales()):
            await log.projections.wait("sales", token)
        await sell(log, 2)
        second = sales()
        second.version = "2"
        with Running(config, second) as running:
            await until(lambda: running.report().error)
            assert "its view is filled by version '', not '2'" in running.report().error
        assert await found(log) == expected


async def test_what_cannot_run_on_spark_is_named(config):
    def plain(events, view) -> None: ...

    async def waits(events) -> None: ...

    class Own:
        def source(self, read_offset): ...

        def extract_offset(self, envelope): ...

    for source, match in (
        (everlog.slices(2), "one key"),
        (everlog.records("x", split=2), "one key"),
        (Own(), "a tag, slices"),
    ):
        projection = Projection("sales", source=source, handler=plain, strategy=on_spark())
        with pytest.raises(InvalidProjection, match=match):
            Running(config, projection)
    with pytest.raises(InvalidProjection, match="plain function"):
        Projection("sales", source=tag("x"), handler=waits, strategy=on_spark())
    with pytest.raises(InvalidProjection, match="everlog projections run"):
        Running(config, Projection("sales", source=tag("x"), handler=waits))
    async with everlog.connect(config) as log:
        with pytest.raises(InvalidProjection, match="replicate --projections"):
            await log.projections.runner(sales())
        with pytest.raises(InvalidProjection, match="on Spark"):
            await log.projections.rebuild(sales())
