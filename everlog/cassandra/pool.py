"""One pool of connections per event loop and cluster, however many parts of Everlog use it.

A keyspace is no reason for another pool: every statement names its own. Settings of which the driver knows are: contact
points, credentials, TLS, time-outs, consistency, and the number of requests under way.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, TypeAlias

from msgspec.structs import replace

from everlog.cassandra.connection import DriverConnection, open_connection, password_of
from everlog.config import CassandraConfig

PoolKey: TypeAlias = tuple[asyncio.AbstractEventLoop, CassandraConfig]

_ANY = CassandraConfig()
# Held weakly: sessions keep their pool alive, so nothing is left of one whose loop and users have ended. A key belongs
# to one loop, and so to one thread.
_pools: weakref.WeakValueDictionary[PoolKey, Pool] = weakref.WeakValueDictionary()


def pool_key(config: CassandraConfig) -> PoolKey:
    """What two users of a pool have in common: the running event loop, and the settings that the driver gets."""
    shared = replace(
        config,
        contact_points=tuple(config.contact_points),
        password=None if config.username is None else password_of(config),
        keyspace=_ANY.keyspace,
        replication_strategy=_ANY.replication_strategy,
        replication_factor=_ANY.replication_factor,
        create_schema=_ANY.create_schema,
        reconnect_on_init=_ANY.reconnect_on_init,
        max_retries=_ANY.max_retries,
    )
    return asyncio.get_running_loop(), shared


class Pool:
    """Connections to one cluster, what is prepared on them, and the turns of those who use them."""

    def __init__(self, key: PoolKey) -> None:
        self.turns = asyncio.Semaphore(key[1].max_requests)
        self.prepared: dict[str, Any] = {}
        self.preparing = asyncio.Lock()
        self._key = key
        self._users = 0
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> DriverConnection:
        try:
            return await open_connection(self._key[1])
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Hand this pool out no more."""
        if _pools.get(self._key) is self:
            del _pools[self._key]

    @property
    def driver(self) -> Any:
        """The driver's session."""
        return self._opening.result().session

    async def join(self) -> None:
        """Become one of the users, once there is a connection. All who wait for it share one attempt."""
        self._users += 1
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """A user ends; with the last one the connections are closed."""
        self._users -= 1
        if self._users:
            return
        self._forget()
        self._opening.cancel()
        await asyncio.wait([self._opening])
        if not self._opening.cancelled() and self._opening.exception() is None:
            await self._opening.result().close()


async def open_pool(config: CassandraConfig) -> Pool:
    """The pool of this event loop for these settings, connected. Its user ends with `release`."""
    key = pool_key(config)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools[key] = Pool(key)
    await pool.join()
    return pool
