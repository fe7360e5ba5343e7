"""Tells an address of new flags by a POST of JSON, and does not wait for an answer.

The invariant: a flag is sent or dropped with a line in the log; neither the receiver nor an earlier flag prevents that.
"""

from __future__ import annotations

import logging
import queue
import threading
import urllib.request

import msgspec

from everlog.queues.rows import Flag
from everlog.runtime.supervisor import error_text

logger = logging.getLogger("everlog.queues")

MAX_WAITING = 100
TIMEOUT_S = 5.0
STOP_S = 10.0


class WebhookBody(msgspec.Struct, rename="camel"):
    """What is sent."""

    queue: str
    reason: str
    count: int
    first_ms: int
    last_ms: int
    owner: str | None
    dead_entry: int | None


class Webhook:
    """Sends in a thread of its own, so that a slow receiver holds up nothing else; too many at once are dropped."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def tell(self, name: str, flag: Flag) -> None:
        body = WebhookBody(name, flag.reason, flag.count, flag.first_ms, flag.last_ms, flag.owner, flag.dead_entry)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="everlog-webhook", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(msgspec.json.encode(body))
        except queue.Full:
            logger.warning("the flag %s of %s was not told to %s: too many wait", flag.reason, name, self._address)

    def close(self) -> None:
        """Send what waits, for a while."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join(STOP_S)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            try:
                self._send(body)
            except Exception as error:  # whatever the receiver makes of it, the next flag is told
                logger.warning("a flag was not told to %s: %s", self._address, error_text(error))

    def _send(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address, body, headers, method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310  # the configuration checked it
            pass
