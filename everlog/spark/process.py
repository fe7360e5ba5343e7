"""A worker process of Spark: its configuration, its memory, and the one event loop that its tasks share."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from everlog.config import CASSANDRA_PASSWORD_VARIABLE, KAFKA_PASSWORD_VARIABLE, Config

T = TypeVar("T")

_runner: asyncio.Runner | None = None
_settled = False


def for_tasks(config: Config) -> Config:
    """The configuration as it travels to the workers, which do not have this process's environment."""
    kafka, cassandra = config.kafka, config.cassandra
    if kafka is not None and kafka.username is not None and kafka.password is None:
        kafka = msgspec.structs.replace(kafka, password=os.environ.get(KAFKA_PASSWORD_VARIABLE))
    if cassandra is not None and cassandra.username is not None and cassandra.password is None:
        cassandra = msgspec.structs.replace(cassandra, password=os.environ.get(CASSANDRA_PASSWORD_VARIABLE))
    return msgspec.structs.replace(config, kafka=kafka, cassandra=cassandra)


def settle_process() -> None:
    """Once per worker: no garbage collection of our own, nothing here makes cycles. Spark collects after every task;
    what the imports made is kept out of its way."""
    global _settled  # noqa: PLW0603
    if not _settled:
        gc.collect()
        gc.freeze()
        gc.disable()
        _settled = True


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the process's one event loop, which is kept over tasks: a store's connections belong to it."""
    global _runner  # noqa: PLW0603
    if _runner is None:
        _runner = asyncio.Runner()
    return _runner.run(work)
