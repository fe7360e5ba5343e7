"""Views by tag as a Spark stream source: what lies between two watermarks, one task per key of the projection.

An offset of the stream is `{"at": {key: time-UUID}, "positions": {"journal-orders/0": 17}}`: up to where each key is
read, and which positions of the log that covers (known when all keys have come up to a watermark).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from everlog.config import Config
from everlog.core.event_types import Upcast
from everlog.core.events import EventType
from everlog.core.timeuuid import TimeUuid
from everlog.store.factory import open_store
from everlog.store.port import Store
from everlog.store.tag_port import TagRow
from everlog.tags.read_retry import RetryingRead
from everlog.tags.view_reader import read_range

FORMAT = "everlog-tag"
PATIENCE_S = 1.0
SCHEMA = (
    "offset string, topic string, id string, seq_nr long, number long, time timestamp, payload_type string, "
    "payload string, data binary, tags array<string>, type string, type_version int"
)
ARROW = pa.schema(
    [
        ("offset", pa.string()),
        ("topic", pa.string()),
        ("id", pa.string()),
        ("seq_nr", pa.int64()),
        ("number", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("payload_type", pa.string()),
        ("payload", pa.string()),
        ("data", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("type", pa.string()),
        ("type_version", pa.int32()),
    ]
)

_stores: dict[str, Store] = {}
_runners: list[asyncio.Runner] = []


class TagOptions(msgspec.Struct, frozen=True):
    """What a reader needs to know; travels as an option of the stream. `keys`: the tags of each.

    `starts`: tags of which less is left to read than of the others of their key. `first`: where the first batch must
    end, because some of it may be stored already. `upcasts`: the steps from older versions of events to the newest,
    pickled; `path`: where the modules are that these are in.
    """

    config: Config
    keys: Mapping[str, tuple[str, ...]]
    start: Mapping[str, str | None]
    max_events: int
    starts: Mapping[str, str] = {}
    first: dict[str, Any] | None = None
    upcasts: bytes | None = None
    path: tuple[str, ...] = ()


class TagRange(InputPartition):
    """The events of some tags after one place up to another."""

    def __init__(self, tags: Sequence[str], after: str | None, upto: str) -> None:
        self.tags = tuple(tags)
        self.after = after
        self.upto = upto


class TagReader(DataSourceStreamReader):
    """Offsets are asked for in the driver's helper process, `read` runs in the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.text = options["everlog"]
        self.options = msgspec.json.decode(self.text, type=TagOptions)
        self._upcasts: Mapping[EventType, Upcast] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": dict(self.options.start), "positions": {}}

    def latestOffset(self, start: dict[str, Any], limit: object = None) -> dict[str, Any]:  # noqa: N802
        """Wait a little for something new: cheaper, and quicker to notice, than being asked again and again."""
        if self.options.first is not None and start["at"] == self.options.start:
            return self.options.first
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found: dict[str, Any] = _run(self._latest(start))
            if found != start or time.monotonic() >= deadline:
                return found
            time.sleep(self.options.config.tags.poll_interval_s)

    async def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        tables = (await self._store()).tags
        assert tables is not None
        watermark = await tables.watermark()
        if watermark.tick < 0 or all(at is not None and place(at) >= watermark.end for at in start["at"].values()):
            return start
        ends = {key: await self._end(key, at, watermark.end) for key, at in start["at"].items()}
        complete = all(end == watermark.end for end in ends.values())
        positions = watermark.positions if complete else start["positions"]
        return {"at": {key: str(end.uuid) for key, end in ends.items()}, "positions": positions}

    async def _end(self, key: str, at: str | None, upto: TimeUuid) -> TimeUuid:
        """The watermark, or the place of an earlier event if there are too many up to there."""
        room = max(1, self.options.max_events // len(self.options.keys))
        async for rows in self._rows(TagRange(self.options.keys[key], at, str(upto.uuid))):
            if len(rows) >= room:
                return rows[room - 1].offset
            room -= len(rows)
        return upto

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[TagRange]:
        before = start["at"]
        return [
            TagRange(self.options.keys[key], before[key], upto)
            for key, upto in end["at"].items()
            if upto is not None and upto != before[key]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TagRange)
        if self.options.upcasts is not None and self._upcasts is None:
            sys.path += [folder for folder in self.options.path if folder not in sys.path]
            self._upcasts = cloudpickle.loads(self.options.upcasts)
        pages = self._rows(partition)
        while (rows := _run(_next(pages))) is not None:
            yield pa.RecordBatch.from_pylist([self._row(row) for row in rows], schema=ARROW)

    async def _rows(self, wanted: TagRange) -> AsyncGenerator[list[TagRow], None]:
        tables, config = (await self._store()).tags, self.options.config.tags
        assert tables is not None
        after = TimeUuid(-1, 0) if wanted.after is None else place(wanted.after)
        upto = place(wanted.upto)
        if after >= upto:
            return
        pages = read_range(
            tables,
            wanted.tags,
            after=after,
            upto=upto,
            page_size=config.page_size,
            retry=RetryingRead(config),
            starts={tag: place(at) for tag, at in self.options.starts.items()},
        )
        async for page in pages:
            yield page

    def _row(self, row: TagRow) -> dict[str, Any]:
        event = row.event
        text = event.data.decode() if isinstance(event.data, bytes) and event.payload_type != "binary" else event.data
        kind = event.event_type
        upcast = None if self._upcasts is None or kind is None else self._upcasts.get(kind)
        if upcast is not None and event.payload_type == "json":
            kind, text = upcast.newest, upcast(text or "null")
        return {
            "offset": str(row.offset.uuid),
            "topic": self.options.config.journal.short(row.topic),
            "id": row.id,
            "seq_nr": event.seq_nr,
            "number": row.number,
            "time": datetime.fromtimestamp(event.timestamp / 1000, UTC),
            "payload_type": event.payload_type,
            "payload": text if isinstance(text, str) else None,
            "data": text if isinstance(text, bytes) else None,
            "tags": sorted(event.tags),
            "type": None if kind is None else kind.name,
            "type_version": None if kind is None else kind.version,
        }

    async def _store(self) -> Store:
        """One open store per process, kept over batches."""
        found = _stores.get(self.text)
        if found is None:
            found = _stores[self.text] = await open_store(self.options.config, in_task=True)
        return found


class TagStreamSource(DataSource):
    """`spark.readStream.format("everlog-tag")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> TagReader:  # noqa: N802
        return TagReader(self.options)


def place(text: str) -> TimeUuid:
    return TimeUuid.parse(text)


async def _next(pages: AsyncGenerator[list[TagRow], None]) -> list[TagRow] | None:
    return await anext(pages, None)


def _run(work: Any) -> Any:
    """One event loop per process: a store's connections belong to it."""
    if not _runners:
        _runners.append(asyncio.Runner())
    return _runners[0].run(work)
