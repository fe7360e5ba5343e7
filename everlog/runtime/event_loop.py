"""The event loop of programs that are ours: servers and workers, which run for long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_for_long(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop's event loop where that is installed: a request costs half as much there."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # another system than it has builds for, or no `everlog[server]`
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
