"""Projections on Spark, from Kafka into Cassandra."""

from __future__ import annotations

import msgspec
import pytest

from everlog.config import PipelineConfig
from tests.fixtures.cluster import MakeConfig
from tests.pipeline.backends import ClusterBackend
from tests.projections.spark_suite import SparkProjectionSuite

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def backend(cluster_config: MakeConfig) -> ClusterBackend:
    return ClusterBackend(msgspec.structs.replace(cluster_config(), pipeline=PipelineConfig(min_retry_s=0.1)))


class TestCluster(SparkProjectionSuite):
    CREATE = "CREATE TABLE sales (shop text, kind text, n bigint, everlog_mark text static, PRIMARY KEY (shop, kind))"
    GET = "SELECT n FROM sales WHERE shop = ? AND kind = 'all'"
    PUT = "UPDATE sales SET n = ? WHERE shop = ? AND kind = 'all'"
    ALL = "SELECT shop, n FROM sales"
