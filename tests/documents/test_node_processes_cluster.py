"""Several server processes on Kafka and Cassandra: routing, hand-over, crashes."""

from __future__ import annotations

import pytest

from everlog.config import Config
from tests.documents.test_node_processes import (  # noqa: F401
    http,
    nodes,
    test_a_node_joins_and_leaves_while_tasks_run,
    test_other_nodes_complete_what_a_dead_one_began,
    test_servers_share_documents,
)
from tests.fixtures.cluster import MakeConfig

pytestmark = pytest.mark.cluster


@pytest.fixture
def config(cluster_config: MakeConfig) -> Config:
    return cluster_config()


@pytest.fixture
def elements() -> int:
    """Each takes several times as long as on a folder; that hundreds are under way when a node dies is enough."""
    return 300


@pytest.fixture
def points() -> list[str]:
    """Here also between the outbox and the content."""
    return ["documents.indexed", "documents.outboxed"]
