"""Which store of queues a configuration names."""

from __future__ import annotations

from collections.abc import Callable

from everlog.config import Config
from everlog.queues.port import QueueStore
from everlog.queues.sqlite.catalog import FOLDER, MAIN
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.upkeep import QueueUpkeep
from everlog.queues.webhook import Webhook
from everlog.runtime.clock import Clock
from everlog.runtime.service import StatusStore
from everlog.runtime.trace import Trace


def has_queues(config: Config) -> bool:
    """Whether there are queues to look at without making files: servers always count."""
    return config.cassandra is not None or (config.folder / FOLDER / MAIN).exists()


def open_queues(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> QueueStore:
    """The store of queues; on a cluster it connects when it is first used."""
    webhook = None if config.queue.webhook is None else Webhook(config.queue.webhook)
    if config.cassandra is not None:
        from everlog.queues.cassandra.own_thread import OwnThreadQueues
        from everlog.queues.cassandra.queue_store import CassandraQueueStore

        host, token = config.queue.host, config.server.cluster_token
        served = CassandraQueueStore(config.cassandra, clock=clock, trace=trace, host=host, token=token)
        served.webhook = webhook
        return OwnThreadQueues(served)
    store = SqliteQueueStore(config.folder, synchronous=config.queue.synchronous, clock=clock, trace=trace)
    store.webhook = webhook
    return store


def make_upkeep(
    config: Config, find_queues: Callable[[], QueueStore], *, clock: Clock, store: StatusStore
) -> QueueUpkeep:
    """The service that sees to all queues; it opens them only if there are any."""
    tables_optional = config.cassandra is not None and not config.cassandra.create_schema
    return QueueUpkeep(
        lambda: find_queues() if has_queues(config) else None,
        clock=clock,
        store=store,
        tables_optional=tables_optional,
    )
