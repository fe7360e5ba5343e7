"""How soon threads take turns, for programs that are a server and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL_S = 0.0005


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let a thread that computes give way to the event loop within half a millisecond.

    Python waits for 5 ms, and an event loop that reads a socket and a file waits for that several times in a request.
    It is a setting of the whole process: so programs decide on it, and the library does not.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
