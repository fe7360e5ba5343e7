"""Chooses the log that a configuration names. Everything above knows only the ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everlog.config import Config, prepare_folder
from everlog.log.port import Log
from everlog.log.sqlite.log import FILE, SqliteLog
from everlog.log.sqlite.trimmer import RetentionLimits
from everlog.runtime.clock import Clock
from everlog.runtime.trace import Trace

if TYPE_CHECKING:
    from everlog.log.stream import LogStream


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
        retention=RetentionLimits(config.log.retention_hours, config.log.retention_bytes),
        clock=clock,
        trace=trace,
    )


def has_log(config: Config) -> bool:
    """Whether there is a log to open without making one: servers always count, a folder counts once it has the file."""
    return config.kafka is not None or (config.folder / FILE).exists()


def make_stream(config: Config) -> LogStream:
    """The log as a stream for Spark."""
    if config.kafka is not None:
        from everlog.log.kafka.stream import KafkaStream

        return KafkaStream(config, config.kafka)
    from everlog.log.sqlite.stream import SqliteStream

    return SqliteStream(config)
