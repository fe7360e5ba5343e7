"""Chooses the store that a configuration names. Everything above knows only the port."""

from __future__ import annotations

from everlog.config import Config
from everlog.runtime.trace import Trace
from everlog.store.port import Store
from everlog.store.sqlite.store import SqliteStore


def takes_known_heads(config: Config) -> bool:
    """Whether a task may go on from heads that its process knows; a transaction of SQLite must see them itself."""
    return config.cassandra is not None


async def open_store(config: Config, *, in_task: bool = False, trace: Trace | None = None) -> Store:
    """Open the store.

    `in_task`: for a task of the pipeline. The embedded store then does not wait for the disk at every commit: the
    driver's commit of pointer2 does, and that makes all before it durable.
    """
    if config.cassandra is not None:
        from everlog.store.cassandra.store import CassandraStore

        return await CassandraStore.open(config.cassandra, trace=trace)
    return SqliteStore(config.folder, synchronous="NORMAL" if in_task else config.store.synchronous, trace=trace)
