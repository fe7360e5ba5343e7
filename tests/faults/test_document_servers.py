"""Many writers through several servers, which are killed: the feed is what was accepted."""

from __future__ import annotations

import pytest

from tests.documents.node_support import fleet
from tests.faults.document_servers import load, verify
from tests.support import small_config

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


async def test_writers_through_servers_that_are_killed(tmp_path) -> None:
    with fleet(small_config(tmp_path / "data"), tmp_path / "fleet", request_timeout_s=15.0) as nodes:
        operations = await load(nodes, seconds=30, every=4, seed=1)
    assert await verify(nodes, operations) > 200
