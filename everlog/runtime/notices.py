"""Notices within a process: a part that has changed something tells those that wait for it, whatever loop they run in.

A notice is only a hint to look now instead of later. Other processes get none, so those who wait also look by
themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def watermark_notice(where: str) -> str:
    """What a pipeline says when the watermark of the data that is there has moved."""
    return f"watermark {where}"


_lock = threading.Lock()
_waiting: dict[str, set[Notice]] = {}


class Notice:
    """Set by a notice; belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until the next notice, or the time is over. One that came since the last wait counts, too."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        self._event.clear()

    def set(self) -> None:
        """In any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._event.set)


@contextmanager
def noticing(what: str) -> Iterator[Notice]:
    """Get the notices about something, as long as this lasts."""
    notice = Notice()
    with _lock:
        _waiting.setdefault(what, set()).add(notice)
    try:
        yield notice
    finally:
        with _lock:
            _waiting[what].discard(notice)
            if not _waiting[what]:
                del _waiting[what]


def notify(what: str) -> None:
    """Something has changed."""
    with _lock:
        found = list(_waiting.get(what, ()))
    for notice in found:
        notice.set()
