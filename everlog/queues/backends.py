"""Which store of queues a configuration names."""

from __future__ import annotations

from everlog.clock import Clock
from everlog.config import Config
from everlog.queues.sqlite.store import SqliteQueueStore
from everlog.queues.store import QueueStore
from everlog.sqlite import Trace


def open_queues(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> QueueStore:
    """The store of queues; on a cluster it connects when it is first used."""
    if config.cassandra is not None:
        from everlog.queues.cassandra.store import CassandraQueueStore

        return CassandraQueueStore(config.cassandra, clock=clock, trace=trace)
    return SqliteQueueStore(config.folder, synchronous=config.queue.synchronous, clock=clock, trace=trace)
