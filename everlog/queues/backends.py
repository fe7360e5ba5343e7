"""Which store of queues a configuration names."""

from __future__ import annotations

from everlog.clock import Clock
from everlog.config import Config
from everlog.errors import InvalidConfig
from everlog.queues.sqlite.store import SqliteQueueStore
from everlog.queues.store import QueueStore
from everlog.sqlite import Trace


def open_queues(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> QueueStore:
    """The store of queues, ready for use."""
    if not config.embedded:
        raise InvalidConfig(
            "work queues on Cassandra are not there yet: use a folder, everlog.connect('everlog-data'), for queues"
        )
    return SqliteQueueStore(config.folder, synchronous=config.queue.synchronous, clock=clock, trace=trace)
