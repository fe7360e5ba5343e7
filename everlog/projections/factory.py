"""Which store keeps the offsets of a configuration's projections."""

from __future__ import annotations

from everlog.config import Config, prepare_folder
from everlog.projections.port import OffsetStore
from everlog.projections.sqlite.offset_store import FILE, SqliteOffsetStore
from everlog.runtime.clock import Clock
from everlog.runtime.trace import Trace


def stores_whole(config: Config) -> bool:
    """Whether the store that a configuration names has `OffsetStore.stores_whole`, before it is opened."""
    return config.cassandra is None


async def open_offset_store(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> OffsetStore:
    """Tables of Cassandra, or a file of its own in the folder, so that a projection never waits for the pipeline."""
    if config.cassandra is not None:
        from everlog.projections.cassandra.offset_store import CassandraOffsetStore

        return await CassandraOffsetStore.open(config.cassandra, clock=clock, trace=trace)
    prepare_folder(config.folder, read=True)
    return SqliteOffsetStore(config.folder / FILE, synchronous=config.store.synchronous, clock=clock, trace=trace)
