"""The real pipeline on the embedded log and store."""

from __future__ import annotations

from pathlib import Path

import pytest

import everlog
from everlog import Event
from everlog.config import Config, JournalConfig, LogConfig
from tests.conftest import Pipeline
from tests.pipeline.backends import EmbeddedBackend
from tests.pipeline.suite import TOPIC, WAIT, PipelineSuite

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def backend(tmp_path: Path) -> EmbeddedBackend:
    journal, log = JournalConfig(segment_size=3), LogConfig(partitions=2)
    return EmbeddedBackend(Config(data=str(tmp_path / "data"), journal=journal, log=log))


class TestEmbeddedPipeline(PipelineSuite):
    async def test_a_replaced_log_is_left_out(self, backend: EmbeddedBackend, pipeline: Pipeline) -> None:
        """A log that was deleted and made anew is not folded into the old tables; the status says why."""
        config = backend.config
        async with everlog.connect(config) as log:
            await log.journal(TOPIC).append("a", Event(1))
            with pipeline(config) as running:
                assert running.wait_until_replicated(WAIT)
        for name in ("log.db", "log.db-wal", "log.db-shm"):
            (config.folder / name).unlink(missing_ok=True)
        async with everlog.connect(config) as log:
            await log.parts.log.create_topic(backend.topic(TOPIC))
            await log.journal("others").append("b", Event(2))
            before = (await backend.tables())["journal"]
            with pipeline(config) as running:
                assert running.wait_until_replicated(WAIT)
                assert "made again" in running.status.left_out[backend.topic(TOPIC)]
            after = (await backend.tables())["journal"]
            assert before == [row for row in after if row["id"] == "a"] != after
