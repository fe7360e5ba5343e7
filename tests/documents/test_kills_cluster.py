"""Kill -9 of writing processes on Kafka and Cassandra, also between outbox and content: no event is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from everlog.runtime.failpoints import COPY_INTO_VIEW_POINTS, DOCUMENT_POINTS
from tests.documents.test_kills import check, nth, write
from tests.fixtures.cluster import MakeConfig
from tests.pipeline.backends import write_config

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("point", [*DOCUMENT_POINTS, *COPY_INTO_VIEW_POINTS])
@pytest.mark.case("hyperstorage", 65, 66, 67)
async def test_a_writer_is_killed(cluster_config: MakeConfig, tmp_path: Path, point: str) -> None:
    """It dies at the third time it reaches the point; another one goes on, and recovery completes the rest.

    Events may still be on their way when the last write is acknowledged: then it dies before it is done with them.
    """
    write_config(cluster_config(), tmp_path / "config.json")
    assert write(tmp_path, "first", die_at=nth(point, 3)) == -signal.SIGKILL
    assert write(tmp_path, "second", count=2) == 0
    await check(tmp_path)
