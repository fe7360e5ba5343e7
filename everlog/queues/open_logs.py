"""The logs that are open where code runs: `await welcome.put(…)` puts into the innermost one.

A context variable: `async with everlog.connect(…)` and workers set it for what runs inside them, tasks included.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from everlog.queues.queue import Queue

QueueSource = Callable[[str], Queue]
"""A queue by its name: the method `queue` of a log."""

_open: ContextVar[tuple[QueueSource, ...]] = ContextVar("everlog_open_logs", default=())


def enter_log(source: QueueSource) -> None:
    """What runs here from now on puts into this log."""
    _open.set((*_open.get(), source))


def leave_log(source: QueueSource) -> None:
    """It is left once. Without a token: a fixture may close a log in another context than it was opened in."""
    found = list(_open.get())
    for at in reversed(range(len(found))):
        if found[at] == source:
            del found[at]
            break
    _open.set(tuple(found))


def innermost_log() -> QueueSource | None:
    """The log that was opened last, and is not closed; None if there is none."""
    found = _open.get()
    return found[-1] if found else None
