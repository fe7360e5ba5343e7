"""The real pipeline on a real broker and a real node."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import MakeConfig
from tests.spark.backends import ClusterBackend
from tests.spark.suite import PipelineSuite

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def backend(cluster_config: MakeConfig) -> ClusterBackend:
    return ClusterBackend(cluster_config())


class TestClusterPipeline(PipelineSuite):
    pass
