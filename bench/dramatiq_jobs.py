"""What Dramatiq's worker processes import: the job. `python -m dramatiq bench.dramatiq_jobs:setup` runs it."""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

QUEUE = "bench"
VARIABLE = "EVERLOG_BENCH_REDIS"


def work(data: str, seconds: float) -> None:
    """Take this long, without work for the processor."""
    if seconds:
        time.sleep(seconds)


def declare(url: str) -> tuple[RedisBroker, Any]:
    """A broker, and the job on it: `actor.send(…)` puts one."""
    broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
    return broker, dramatiq.actor(broker=broker, queue_name=QUEUE)(work)


def setup() -> None:
    """For a worker process, which is told by its environment where Redis is."""
    broker, _ = declare(os.environ[VARIABLE])
    dramatiq.set_broker(broker)
