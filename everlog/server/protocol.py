"""HTTP/1.1 connections that cannot be held for nothing.

uvicorn's own protocol waits forever for the first request, for the rest of a request's head, and for a peer that does
not read. This one gives all three a time; bodies have theirs where they are read (requests.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("everlog.http")


class BoundedProtocol(H11Protocol):
    """A peer that sends no whole head within `header_timeout_s`, or takes nothing for `send_timeout_s`, is cut.

    A stream that was cut can be resumed: every frame of it carries its position.
    """

    header_timeout_s = 10.0
    send_timeout_s = 30.0
    on_cut: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting_for_head: asyncio.TimerHandle | None = None
        self._waiting_for_reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is None:  # a further request is under way already
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._waiting_for_reader is None:
            self._waiting_for_reader = self.loop.call_later(self.send_timeout_s, self._cut, "reads nothing")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._waiting_for_reader is not None:
            self._waiting_for_reader.cancel()
            self._waiting_for_reader = None

    def _await_head(self) -> None:
        """The time for a head runs from its first moment: more bytes of it do not prolong it."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._waiting_for_head is not None:
                self._waiting_for_head.cancel()
                self._waiting_for_head = None
        elif self._waiting_for_head is None and self.timeout_keep_alive_task is None:
            self._waiting_for_head = self.loop.call_later(self.header_timeout_s, self._cut, "sends no whole request")

    def _cut(self, why: str) -> None:
        log.info("the connection of %s is cut: it %s", self.client, why)
        self._cancel()
        self.on_cut()
        self.transport.abort()

    def _cancel(self) -> None:
        for timer in (self._waiting_for_head, self._waiting_for_reader):
            if timer is not None:
                timer.cancel()
        self._waiting_for_head = self._waiting_for_reader = None


def bounded(header_timeout_s: float, send_timeout_s: float, on_cut: Callable[[], None]) -> type[BoundedProtocol]:
    """The protocol with these times, in seconds; `on_cut` is called for every connection that it ends."""
    times = {"header_timeout_s": header_timeout_s, "send_timeout_s": send_timeout_s, "on_cut": staticmethod(on_cut)}
    return type("BoundedProtocol", (BoundedProtocol,), times)
