"""Many writers through several servers on Kafka and Cassandra, which are killed: the feed is what was accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.node_support import fleet
from tests.faults.document_servers import load, verify
from tests.fixtures.cluster import MakeConfig

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(300)]


async def test_writers_through_servers_that_are_killed(cluster_config: MakeConfig, tmp_path: Path) -> None:
    with fleet(cluster_config(), tmp_path / "fleet", request_timeout_s=15.0) as nodes:
        operations = await load(nodes, seconds=30, every=4, seed=2)
    assert await verify(nodes, operations) > 200
