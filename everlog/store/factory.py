"""Which log and which store a configuration names. Everything else knows only their interfaces."""

from __future__ import annotations

from everlog.config import Config, prepare_folder
from everlog.log.port import Log
from everlog.log.sqlite.log import SqliteLog
from everlog.runtime.clock import Clock
from everlog.sqlite.connection import Trace
from everlog.store.port import Store
from everlog.store.sqlite.store import SqliteStore


async def open_parts(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> tuple[Log, Store]:
    """The log and the store, ready for use."""
    log = await open_log(config, clock=clock, trace=trace)
    try:
        return log, await open_store(config, trace=trace)
    except BaseException:
        await log.close()
        raise


async def open_log(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> Log:
    """The log alone."""
    prepare_folder(config.folder)
    if config.kafka is not None:
        from everlog.log.kafka.log import KafkaLog

        return await KafkaLog.open(config, clock=clock, trace=trace)
    return SqliteLog(
        config.folder,
        partitions=config.log.partitions,
        synchronous=config.log.synchronous,
        append_timeout=config.journal.append_timeout,
        clock=clock,
        trace=trace,
    )


async def open_store(config: Config, *, in_task: bool = False, trace: Trace | None = None) -> Store:
    """The store alone.

    `in_task`: for a task of the pipeline. The embedded store then does not wait for the disk at every commit: the
    driver's commit of pointer2 does, and that makes all before it durable.
    """
    if config.cassandra is not None:
        from everlog.store.cassandra.store import CassandraStore

        return await CassandraStore.open(config.cassandra, trace=trace)
    return SqliteStore(config.folder, synchronous="NORMAL" if in_task else config.store.synchronous, trace=trace)
