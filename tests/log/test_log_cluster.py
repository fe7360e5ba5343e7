"""The log on Kafka keeps what every log promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.config import Config
from everlog.log.kafka.log import KafkaLog
from everlog.log.port import Log
from everlog.testing import LogConformance

pytestmark = pytest.mark.cluster


class TestKafkaLog(LogConformance):
    @pytest.fixture
    def config(self, shared_config) -> Config:
        return shared_config(partitions=2)

    @pytest.fixture
    def prefix(self, config) -> str:
        return config.journal.topic_prefix

    @pytest.fixture
    async def log(self, config) -> AsyncIterator[Log]:
        log = await KafkaLog.open(config)
        yield log
        await log.close()
