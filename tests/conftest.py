"""Settings for all tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from everlog.api import Everlog
from everlog.client import connect
from everlog.cluster.jars import find_jars
from everlog.config import Config, SparkConfig
from everlog.errors import ClusterFailed
from tests.support import ManualClock, small_config

Pipeline = Callable[..., AbstractContextManager[Any]]

# So that a failing assertion of a shared suite shows its values.
pytest.register_assert_rewrite("tests.spark.suite")

# Times are noisy on small machines: no deadline. A failure prints how to repeat it.
settings.register_profile(
    "everlog", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("thorough", parent=settings.get_profile("everlog"), max_examples=2000)
# For mutants: that a test fails is enough, the smallest example is not looked for.
settings.register_profile("unshrunk", parent=settings.get_profile("everlog"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everlog"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def small_log(tmp_path, clock) -> AsyncIterator[Everlog]:
    """An embedded folder with two partitions, segments of three events and pages of four."""
    async with connect(small_config(tmp_path / "data"), clock=clock) as log:
        yield log


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session for the whole run, as it costs several seconds; with the connector to Kafka where that is."""
    from everlog.spark.session import open_session

    try:
        jars = (str(find_jars("spark")),)
    except ClusterFailed:
        jars = ()  # the tests that need it need servers from the same place, too
    session = open_session(Config(spark=SparkConfig(jars=jars)))
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark: Any) -> Pipeline:
    """`with pipeline(config) as running:` a pipeline on the shared session."""
    from everlog.pipeline.replicator import Replicator

    @contextmanager
    def run(config: Config, **options: Any) -> Iterator[Replicator]:
        replicator = Replicator(config, session=spark, **options)
        replicator.start()
        try:
            yield replicator
        finally:
            replicator.stop()

    return run
