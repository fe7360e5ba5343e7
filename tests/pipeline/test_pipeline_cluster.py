"""The real pipeline on a real broker and a real node."""

from __future__ import annotations

import pytest

from tests.fixtures.cluster import MakeConfig
from tests.pipeline.backends import ClusterBackend
from tests.pipeline.suite import PipelineSuite

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def backend(cluster_config: MakeConfig) -> ClusterBackend:
    return ClusterBackend(cluster_config())


class TestClusterPipeline(PipelineSuite):
    pass
