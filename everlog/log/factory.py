"""Chooses the log that a configuration names. Everything above knows only the ports."""

from __future__ import annotations

from everlog.config import Config, prepare_folder
from everlog.log.port import Log
from everlog.log.range_reader import RangeReader
from everlog.log.sqlite.log import FILE, SqliteLog
from everlog.log.sqlite.range_reader import SqliteRangeReader
from everlog.log.sqlite.trimmer import RetentionLimits
from everlog.runtime.clock import Clock
from everlog.runtime.trace import Trace


async def open_log(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> Log:
    """Open the log."""
    prepare_folder(config.folder, read=True)
    if config.kafka is not None:
        from everlog.log.kafka.log import KafkaLog

        return await KafkaLog.open(config, clock=clock, trace=trace)
    return SqliteLog(
        config.folder,
        partitions=config.log.partitions,
        synchronous=config.log.synchronous,
        append_timeout_s=config.journal.append_timeout_s,
        poll_s=config.pipeline.poll_interval_s,
        retention=RetentionLimits(config.log.retention_hours, config.log.retention_bytes),
        clock=clock,
        trace=trace,
    )


def has_log(config: Config) -> bool:
    """Whether there is a log to open without making one: servers always count, a folder counts once it has the file."""
    return config.kafka is not None or (config.folder / FILE).exists()


def make_range_reader(config: Config) -> RangeReader:
    """What reads the log in a task of Spark."""
    if config.kafka is not None:
        from everlog.log.kafka.range_reader import KafkaRangeReader

        return KafkaRangeReader(config.kafka)
    return SqliteRangeReader(config.folder)
