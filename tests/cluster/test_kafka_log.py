"""The log on Kafka keeps what every log promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from everlog.config import Config
from everlog.log.base import Log
from everlog.log.kafka.log import KafkaLog
from everlog.testing import LogConformance
from tests.cluster.kafka_support import cleaned

pytestmark = pytest.mark.cluster


class TestKafkaLog(LogConformance):
    @pytest.fixture
    def config(self, cluster_config) -> Iterator[Config]:
        with cleaned(cluster_config(partitions=2)) as config:
            yield config

    @pytest.fixture
    def prefix(self, config) -> str:
        return config.journal.topic_prefix

    @pytest.fixture
    async def log(self, config) -> AsyncIterator[Log]:
        log = await KafkaLog.open(config)
        yield log
        await log.close()
