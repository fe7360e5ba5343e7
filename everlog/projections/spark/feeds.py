"""What a projection on Spark reads: a view by tag or slices of all, or the records of a topic, as a stream."""

from __future__ import annotations

import json
import pickle
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark import cloudpickle

from everlog.config import Config
from everlog.core.event_types import EventTypes
from everlog.core.tag_names import slice_part, slice_tag
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import LogOffsets, parse_partition_name, partition_name
from everlog.errors import InvalidOffset, InvalidProjection, LogTruncated, TopicMissing
from everlog.log.factory import open_log
from everlog.log.port import LogTopic
from everlog.projections.offsets import Offset
from everlog.projections.record_source import RecordSource
from everlog.projections.save_window import OffsetProgress
from everlog.projections.source import Source
from everlog.projections.spark import record_stream
from everlog.projections.spark.record_stream import RecordOptions, RecordStreamSource
from everlog.projections.tag_source import TagSource, check_place, check_places, slice_firsts, slice_keys
from everlog.spark.process import for_tasks
from everlog.tags.spark.stream import FORMAT, TagOptions, TagStreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkFeed(ABC):
    """A source at work on Spark."""

    tracks_all = False
    # Whether it can be told where the first batch must end.
    repeatable = False
    keys: tuple[str, ...]

    def parts(self, key: str) -> Sequence[str] | None:
        """The entries of maps of offsets that belong to a key, if keys divide a source that can be divided anew."""
        return None

    @abstractmethod
    async def stream(
        self, session: SparkSession, stored: Mapping[str, Offset | None], first: str | None = None
    ) -> DataFrame:
        """What comes after the stored offsets, by key. `first`: the offset of the stream that ends the first batch."""

    @abstractmethod
    def reached(self, offset: str) -> dict[str, OffsetProgress]:
        """By key: what is done once a batch is that ends at this offset of the stream."""


class SparkTagFeed(SparkFeed):
    """Events by tag, or by slices."""

    tracks_all = True
    repeatable = True

    def __init__(self, config: Config, source: TagSource, max_events: int) -> None:
        self._config = config
        self._max_events = max_events
        self._upcasts = None if source.types is None else _pickled(source.types)
        self._slices = source.name is None
        self._tags: dict[str, tuple[str, ...]] = {}
        if source.name is not None:
            self._tags[source.name] = (source.name,)
        else:
            for key in slice_keys(source.split):
                self._tags[key] = tuple(slice_tag(first) for first in slice_firsts(key))
        self.keys = tuple(self._tags)

    def parts(self, key: str) -> Sequence[str] | None:
        return [slice_part(first) for first in slice_firsts(key)] if self._slices else None

    def _starts(self, key: str, stored: Offset | None) -> dict[str, str]:
        """Where each part of the slices begins, by its tag."""
        places = check_places(key, stored)
        return {slice_tag(first): str(places[slice_part(first)]) for first in slice_firsts(key, places)}

    async def stream(
        self, session: SparkSession, stored: Mapping[str, Offset | None], first: str | None = None
    ) -> DataFrame:
        start: dict[str, str | None] = {}
        starts: dict[str, str] = {}
        for key, tags in self._tags.items():
            if self._slices:
                places = self._starts(key, stored[key])
                starts |= places
                start[key] = min(places.values(), key=TimeUuid.parse) if len(places) == len(tags) else None
            else:
                at = check_place(stored[key])
                start[key] = None if at is None else str(at)
        options = TagOptions(
            for_tasks(self._config),
            self._tags,
            start,
            self._max_events,
            starts,
            None if first is None else json.loads(first),
            self._upcasts,
            tuple(sys.path),
        )
        session.dataSource.register(TagStreamSource)
        return session.readStream.format(FORMAT).option("everlog", msgspec.json.encode(options).decode()).load()

    def reached(self, offset: str) -> dict[str, OffsetProgress]:
        found, short = json.loads(offset), self._config.journal.short
        places = {parse_partition_name(place): end for place, end in found["positions"].items()}
        positions = {(short(topic), partition): end - 1 for (topic, partition), end in places.items()}
        places_of = {key: TimeUuid.parse(at).uuid for key, at in found["at"].items() if at is not None}
        return {key: OffsetProgress(self._offset(key, at), positions=positions) for key, at in places_of.items()}

    def _offset(self, key: str, at: uuid.UUID) -> Offset:
        parts = self.parts(key)
        return at if parts is None else dict.fromkeys(parts, at)


class SparkRecordFeed(SparkFeed):
    """The records of a topic."""

    def __init__(self, config: Config, source: RecordSource) -> None:
        if source.split != 1:
            raise InvalidProjection("on Spark, a topic's records are one key: its partitions are read in parallel")
        self._config = config
        self._topic = source.topic
        self._name = config.journal.topic_prefix + source.topic
        self.keys = (self._name,)

    async def stream(
        self, session: SparkSession, stored: Mapping[str, Offset | None], first: str | None = None
    ) -> DataFrame:
        assert first is None
        topic, start = await self._start(stored[self._name])
        options = RecordOptions(for_tasks(self._config), topic, start)
        session.dataSource.register(RecordStreamSource)
        text = msgspec.json.encode(options).decode()
        return session.readStream.format(record_stream.FORMAT).option("everlog", text).load()

    async def _start(self, stored: Offset | None) -> tuple[LogTopic, LogOffsets]:
        if stored is not None and not isinstance(stored, Mapping):
            raise InvalidOffset(f"{stored!r} is not the offset of a topic's records: those are maps")
        log = await open_log(self._config)
        try:
            topic = await log.topic(self._name)
            if topic is None:
                raise TopicMissing(f"there is no topic {self._topic} yet")
            offsets: LogOffsets = {}
            for partition in range(topic.partitions):
                done = int(str((stored or {}).get(f"{self._name}-{partition}", -1)))
                first = (await log.bounds(topic, partition)).start
                if 0 <= done < first - 1:
                    gone = f"records {done + 1} to {first - 1} are gone, the projection did not see them"
                    raise LogTruncated(self._name, partition, gone)
                offsets[partition_name(self._name, partition)] = max(done + 1, first)
            return topic, offsets
        finally:
            await log.close()

    def reached(self, offset: str) -> dict[str, OffsetProgress]:
        found = {parse_partition_name(name)[1]: end for name, end in json.loads(offset).items()}
        ends = {partition: end - 1 for partition, end in found.items() if end}
        entries = {f"{self._name}-{partition}": at for partition, at in ends.items()}
        positions = {(self._topic, partition): at for partition, at in ends.items()}
        return {self._name: OffsetProgress(entries or None, positions=positions)}


def _pickled(types: EventTypes) -> bytes:
    """The steps from older versions, for the tasks. Functions travel from anywhere, classes only by their module."""
    for upcast in types.upcasts.values():
        for step in upcast.steps:
            if step.source is not None and not _importable(step.source):
                raise InvalidProjection(
                    f"on Spark, tasks must import {step.source.__name__}, from which events are upcast: "
                    "move it, with its step, into a module, or let the step take plain JSON"
                )
    try:
        found: bytes = cloudpickle.dumps(types.upcasts)  # type: ignore[no-untyped-call]
    except (TypeError, pickle.PicklingError) as error:
        raise InvalidProjection(
            f"the steps of upcasts cannot be sent to the tasks of Spark ({error}): move them into a module"
        ) from error
    return found


def _importable(cls: type) -> bool:
    return cls.__module__ != "__main__" and getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls


def feed_of(config: Config, source: Source, max_events: int) -> SparkFeed:
    """The source as Spark reads it. A user's own source has nothing that tasks could read."""
    if isinstance(source, TagSource):
        return SparkTagFeed(config, source, max_events)
    if isinstance(source, RecordSource):
        return SparkRecordFeed(config, source)
    raise InvalidProjection(
        "on Spark, a source is a tag, slices, or the records of a topic; for the events of a topic, set slices = true "
        "for it and use slices()"
    )
