"""Reads that go on after a short failure of the store; every page has its own bounds, so nothing comes twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from everlog.config import TagsConfig
from everlog.errors import EverlogError
from everlog.runtime.retry import pause_after

log = logging.getLogger("everlog.tags")

T = TypeVar("T")


class ReadRetry(Protocol):
    """Calls again what failed for a passing reason."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T: ...


class RetryingRead:
    """Retries with doubling pauses, at most `max_retries` times in a row."""

    def __init__(self, config: TagsConfig, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._config = config
        self._sleep = sleep

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        config = self._config
        for failures in range(1, config.max_retries + 1):
            try:
                return await work()
            except EverlogError as error:
                if not error.retriable:
                    raise
                log.warning("a read by tag failed and is tried again: %s", error)
                await self._sleep(pause_after(failures, config.min_retry_s, config.max_retry_s))
        return await work()
