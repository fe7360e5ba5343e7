"""Kafka as a Spark stream: the connector's own source, its settings, and records from its rows.

The header `journal.action` is taken out in Python: as long as it is a record's only header, which is nearly always,
that costs less than an expression in the JVM.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow as pa

from everlog.config import Config, JournalConfig, KafkaConfig
from everlog.core.actions import ACTION_HEADER
from everlog.core.record import Record
from everlog.core.values import LogOffsets, parse_partition_name, partition_name
from everlog.log.kafka.client import java_settings
from everlog.log.kafka.records import split_headers
from everlog.log.stream import LogStream, PartitionRecords, StreamDecoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers")


class KafkaStream(LogStream):
    """All topics that the configuration names."""

    mixes = True

    def __init__(self, config: Config, kafka: KafkaConfig) -> None:
        self._config = config
        self._kafka = kafka

    def stream(self, session: SparkSession, offsets: LogOffsets, passed: Collection[str]) -> DataFrame:
        options = source_options(self._config, self._kafka, offsets, passed)
        return session.readStream.format("kafka").options(**options).load().selectExpr(*COLUMNS)

    def ends(self, offset: str) -> LogOffsets:
        return {
            partition_name(topic, int(partition)): end
            for topic, partitions in json.loads(offset).items()
            for partition, end in partitions.items()
        }

    @property
    def decoder(self) -> StreamDecoder:
        return decode_rows


def source_options(config: Config, kafka: KafkaConfig, offsets: LogOffsets, passed: Collection[str]) -> dict[str, str]:
    """The connector's options. Never `minPartitions`: a task would then get less than a log partition."""
    patience = str(round(kafka.request_timeout_s * 1000))
    clients = java_settings(kafka) | {
        # A small batch would otherwise wait half a second for more to come.
        "fetch.max.wait.ms": "10",
        "isolation.level": "read_uncommitted",
        # Notice and report a broker that is away before the default of a minute.
        "request.timeout.ms": patience,
        "default.api.timeout.ms": patience,
    }
    return {
        "subscribePattern": topic_pattern(config.journal, passed),
        "startingOffsets": _starting_offsets(offsets),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(config.pipeline.max_batch_records),
        "kafkaConsumer.pollTimeoutMs": patience,
        **{f"kafka.{name}": value for name, value in clients.items()},
        **kafka.spark_options,
    }


def topic_pattern(journal: JournalConfig, left_out: Collection[str]) -> str:
    r"""A regular expression, for Java, of the topics to read; the connector looks for it anywhere in a name.

    >>> topic_pattern(JournalConfig(topic_prefix="a."), ["a.old"])
    '^(?!(?:a\\.old)$)a\\..*$'
    """
    if journal.topics:
        names = sorted(name for name in journal.topics if journal.includes(name) and name not in left_out)
        return f"^(?:{'|'.join(map(re.escape, names))})$" if names else "(?!)"
    others = "|".join(map(re.escape, sorted(left_out)))
    return "^" + (f"(?!(?:{others})$)" if others else "") + re.escape(journal.topic_prefix) + ".*$"


def _starting_offsets(offsets: LogOffsets) -> str:
    """As the connector wants them: it refuses to start if a partition is not named."""
    topics: dict[str, dict[str, int]] = defaultdict(dict)
    for place, offset in offsets.items():
        topic, partition = parse_partition_name(place)
        topics[topic][str(partition)] = offset
    return json.dumps(topics)


def decode_rows(batch: pa.RecordBatch) -> Iterator[PartitionRecords]:
    """The records of a batch. The partitions of a task come one after the other."""
    start = 0
    while start < batch.num_rows:
        end = _end_of_run(batch.columns[:2], start)
        yield _decode_partition(batch.slice(start, end - start))
        start = end


def _end_of_run(columns: Sequence[pa.Array], start: int) -> int:
    """Where the partition that begins at `start` ends. Nearly always a batch is all of one."""
    rows = len(columns[0])
    if all(column[start] == column[rows - 1] for column in columns):
        return rows
    places = list(zip(*(column[start:].to_pylist() for column in columns), strict=True))
    return start + next(at for at, place in enumerate(places) if place != places[0])


def _decode_partition(batch: pa.RecordBatch) -> PartitionRecords:
    topics, partitions, offsets, timestamps, keys, values, headers = batch.columns
    topic, partition = topics[0].as_py(), partitions[0].as_py()
    columns = (repeat(partition), offsets.to_pylist(), timestamps.to_pylist(), keys.to_pylist())
    actions = _only_actions(headers)
    if actions is not None:
        records = list(map(Record, *columns, actions, values.to_pylist()))
    else:
        found = [split_headers([(one["key"], one["value"]) for one in row or ()]) for row in headers.to_pylist()]
        actions, others = [action for action, _ in found], [rest for _, rest in found]
        records = list(map(Record, *columns, actions, values.to_pylist(), others))
    return PartitionRecords(topic, partition, records, batch.nbytes)


def _only_actions(headers: pa.ListArray) -> list[bytes | None] | None:
    """The actions, if every record has one header and it is the action; else None."""
    if headers.null_count or headers.value_lengths().unique().to_pylist() != [1]:
        return None
    names, values = headers.flatten().flatten()
    if values.null_count or names.unique().to_pylist() != [ACTION_HEADER]:
        return None
    actions: list[bytes | None] = values.to_pylist()
    return actions
