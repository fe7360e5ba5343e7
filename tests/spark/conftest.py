"""One Spark session for the whole run; it costs several seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from everlog.config import Config
from everlog.pipeline.replicate import Replicator
from everlog.pipeline.session import open_session

Pipeline = Callable[..., AbstractContextManager[Replicator]]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = open_session(Config())
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark: Any) -> Pipeline:
    """`with pipeline(config) as running:` a pipeline on the shared session."""

    @contextmanager
    def run(config: Config, **options: Any) -> Iterator[Replicator]:
        replicator = Replicator(config, session=spark, **options)
        replicator.start()
        try:
            yield replicator
        finally:
            replicator.stop()

    return run
