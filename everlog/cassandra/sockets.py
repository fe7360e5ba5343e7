"""The sockets that the driver leaves open when a session is closed."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections import deque
from typing import Any

MAX_PARKED = 64

_parked: deque[int] = deque()


def close_sockets(cluster: Any) -> None:
    """The pairs of sockets by which the driver's threads wake the event loop; it leaves them open.

    A thread may be about to write its last byte. So the number of its end is not given back at once: another file
    would get it, and then that byte. It leads nowhere for a while instead.
    """
    loop = asyncio.get_running_loop()
    for owner in (cluster, cluster.get_logger()):
        for found in gc.get_referents(owner):
            if isinstance(found, socket.socket) and found.fileno() >= 0:
                loop.remove_reader(found)
                _park(found.detach())


def _park(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
    _parked.append(number)
    if len(_parked) > MAX_PARKED:
        os.close(_parked.popleft())
