"""The event loop of programs that are ours: servers and workers, which run for long."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_for_long(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop's event loop where that is installed: a request costs half as much there."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # another system than it has builds for, or no `everlog[server]`
        return asyncio.run(work)
    with own_signals(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


@contextmanager
def own_signals() -> Iterator[None]:
    """Afterwards Ctrl-C and SIGTERM do what they did before: uvloop leaves handlers of its own behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
