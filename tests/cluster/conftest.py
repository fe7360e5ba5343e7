"""One real cluster for the whole run; every test gets a keyspace and a topic prefix of its own.

EVERLOG_TEST_CLUSTER names the everlog.toml of a cluster that runs already (`everlog cluster up`), to save the start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from everlog.config import Config, JournalConfig, load_config
from tests.cluster.servers import running

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Config]:
    """The configuration of a running broker and node."""
    named = os.environ.get("EVERLOG_TEST_CLUSTER")
    if named:
        yield load_config(named)
        return
    with running(tmp_path_factory.mktemp("cluster")) as local:
        yield load_config(local.config_file)


@pytest.fixture
def cluster_config(cluster, tmp_path) -> MakeConfig:
    """`cluster_config(partitions=2, page_size=4)`: small segments and pages, a fresh keyspace, a fresh prefix."""

    def make(*, partitions: int = 2, **journal: Any) -> Config:
        name = f"t{secrets.token_hex(5)}"
        sizes: dict[str, Any] = {"segment_size": 3, "page_size": 4, "topic_prefix": f"{name}-", **journal}
        assert cluster.cassandra is not None
        return msgspec.structs.replace(
            cluster,
            data=str(tmp_path / "data"),
            log=msgspec.structs.replace(cluster.log, partitions=partitions),
            journal=JournalConfig(**sizes),
            cassandra=msgspec.structs.replace(cluster.cassandra, keyspace=name),
        )

    return make
