"""Expiry on Kafka and Cassandra."""

from __future__ import annotations

from random import Random, randrange

import pytest

from everlog.client import connect
from everlog.runtime.clock import SystemClock
from tests.journal.expiry_support import HOUR_MS, check_expiry
from tests.support import ManualClock

pytestmark = pytest.mark.cluster


async def test_a_journal_is_purged_when_its_time_has_come_and_not_before(shared_config):
    """Brokers refuse records of the future, so the test's time passes in the past."""
    seed = randrange(10**6)
    print(f"seed {seed}")
    clock = ManualClock(SystemClock().now_ms() - 60 * HOUR_MS)
    async with connect(shared_config(), clock=clock) as log:
        await log.journal("t").mark("first")
        await check_expiry(log, clock, Random(seed), runs=3, appends=8)
