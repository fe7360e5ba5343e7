"""Settings for all tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from everlog.client import Everlog, connect
from tests.support import ManualClock, small_config

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
