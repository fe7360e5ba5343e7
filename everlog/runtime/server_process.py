"""What a process changes of itself that is a server and nothing else.

Both are settings of the whole process: so programs decide on them, and the library does not.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0005


@contextmanager
def as_server_process() -> Iterator[None]:
    """Keep short what holds up the event loop while others compute.

    A thread that computes gives way within half a millisecond. Python waits for 5 ms, and an event loop that reads a
    socket and a file waits for that several times in a request. What was made up to now, mostly modules, is left out of
    garbage collections: they would look through all of it several times while one large body is decoded.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)
