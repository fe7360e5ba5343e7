"""Settings for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config
from tests.fixtures.cluster import cluster, cluster_config, shared_config, shared_keyspace, topics  # noqa: F401
from tests.support import ManualClock, small_config

Pipeline = Callable[..., AbstractContextManager[Any]]

# So that a failing assertion of a shared suite shows its values.
pytest.register_assert_rewrite("tests.pipeline.suite", "tests.projections.spark_suite")

# In the background (`nohup make test &`) a shell starts programs with SIGINT ignored, and what they start ignores it,
# too. Tests of Ctrl-C need what a program in the foreground has; the processes that they start inherit it from here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Times are noisy on small machines: no deadline. A failure prints how to repeat it.
settings.register_profile(
    "everlog", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("thorough", parent=settings.get_profile("everlog"), max_examples=2000)
# For mutants: that a test fails is enough, the smallest example is not looked for.
settings.register_profile("unshrunk", parent=settings.get_profile("everlog"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everlog"))


# What a test needs decides what it costs. The cheap ones run first: whoever broke the fold hears it in seconds.
TIERS = ("spark", "cluster", "browser", "docs", "faults", "soak")
DOCS = Path(__file__).parent / "docs"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what its fixtures need (`-m` comes afterwards), and order all by cost."""
    for item in items:
        for name in ("spark", "cluster", "browser"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)
        if item.path.is_relative_to(DOCS):
            item.add_marker("docs")
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    """The dearest tier that a test belongs to; below them those with a folder, and first those without."""
    tiers = [TIERS.index(mark.name) for mark in item.iter_markers() if mark.name in TIERS]
    if tiers:
        return 2 + max(tiers)
    return int("tmp_path" in getattr(item, "fixturenames", ()))


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
    """One Spark session for the whole run, as it costs several seconds."""
    from everlog.spark.session import open_session

    session = open_session(Config())
    yield session
    session.stop()


@pytest.fixture(scope="session")
def class_archive(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For tests that start many pipelines in processes of their own."""
    from tests.pipeline.class_archive import make_archive

    make_archive(tmp_path_factory.mktemp("archive"))


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
