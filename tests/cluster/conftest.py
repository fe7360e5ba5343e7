"""One real cluster for the whole run; every test gets a keyspace and a topic prefix of its own.

EVERLOG_TEST_CLUSTER names the everlog.toml of a cluster that runs already (`everlog cluster up`), to save the start.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from everlog.cassandra.session import connect
from everlog.config import Config, JournalConfig, load_config
from tests.cluster.kafka_support import admin
from tests.cluster.servers import running

MakeConfig = Callable[..., Config]

# Cassandra flushes its own tables at every change of a schema, for its next start. This one never starts again, and
# every test makes a keyspace: that takes a third of the time without.
QUICK_SCHEMA = "-Dcassandra.test.flush_local_schema_changes=false"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Config]:
    """The configuration of a running broker and node."""
    named = os.environ.get("EVERLOG_TEST_CLUSTER")
    if named:
        yield load_config(named)
        return
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", QUICK_SCHEMA)
            local = stack.enter_context(running(tmp_path_factory.mktemp("cluster")))
        yield load_config(local.config_file)


@pytest.fixture
def cluster_config(cluster, tmp_path) -> Iterator[MakeConfig]:
    """`cluster_config(partitions=2, page_size=4)`: small segments and pages, a fresh keyspace, a fresh prefix.

    Both go when the test is over, with all other keyspaces and topics whose names begin like them: a node's memory
    holds about a hundred keyspaces.
    """
    names: list[str] = []

    def make(*, partitions: int = 2, **journal: Any) -> Config:
        name = f"t{secrets.token_hex(5)}"
        names.append(name)
        sizes: dict[str, Any] = {"segment_size": 3, "page_size": 4, "topic_prefix": f"{name}-", **journal}
        assert cluster.cassandra is not None
        return msgspec.structs.replace(
            cluster,
            data=str(tmp_path / "data"),
            log=msgspec.structs.replace(cluster.log, partitions=partitions),
            journal=JournalConfig(**sizes),
            cassandra=msgspec.structs.replace(cluster.cassandra, keyspace=name),
        )

    yield make
    if names:
        drop_topics(cluster, tuple(names))
        asyncio.run(drop_keyspaces(cluster, tuple(names)))


def drop_topics(config: Config, prefixes: tuple[str, ...]) -> None:
    client = admin(config)
    found = [name for name in client.list_topics(timeout=30).topics if name.startswith(prefixes)]
    for future in client.delete_topics(found).values() if found else ():
        future.exception(30)


async def drop_keyspaces(config: Config, prefixes: tuple[str, ...]) -> None:
    assert config.cassandra is not None
    session = await connect(config.cassandra)
    for (name,) in await session.fetch("SELECT keyspace_name FROM system_schema.keyspaces"):
        if name.startswith(prefixes):
            await session.change_schema(f"DROP KEYSPACE IF EXISTS {name}")
    await session.close()
