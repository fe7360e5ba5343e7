"""Everlog on the cluster, and an event loop that stays open over the rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import everlog
from everlog.config import Config

T = TypeVar("T")


class Connected:
    """An open log; `run` runs work in its loop."""

    def __init__(self, config: Config) -> None:
        self._runner = asyncio.Runner()
        self.log = everlog.connect(config)

    def __enter__(self) -> Self:
        self.run(self.log.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.log.close())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)
