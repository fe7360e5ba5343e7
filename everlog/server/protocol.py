"""HTTP/1.1 connections that cannot be held for nothing.

uvicorn's own protocol waits forever for the first request, for the rest of a request's head, and for a peer that does
not read. This one gives all three a time; bodies have theirs where they are read (requests.py).

The invariant: a connection without a request under way never takes the place of one with it. When all places are taken,
the one that has waited longest for its first request is cut, and if there is none, the one that is idle for longest.
Only when all are at work is a request answered with 503. And a request says in one way only where its body ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("everlog.http")

DEFAULT_HEAD_BYTES = 64 * 1024


class StrictConnection(h11.Connection):
    """Refuses a request that says twice, or in a way that its version does not know, where its body ends.

    A proxy in front may believe the other one, and take the rest of this body for a request of someone else.
    """

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
        return event


class WaitingConnections:
    """The connections of a server on which no request is under way, those that have waited longest first."""

    def __init__(self) -> None:
        self._new: dict[BoundedProtocol, None] = {}
        self._idle: dict[BoundedProtocol, None] = {}

    def enter(self, connection: BoundedProtocol, *, served: bool) -> None:
        """It waits from now on; if it did already, its place stays. `served`: it had a request before."""
        (self._idle if served else self._new).setdefault(connection)

    def leave(self, connection: BoundedProtocol) -> None:
        """It has a request, or is gone."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def oldest(self, other_than: BoundedProtocol) -> BoundedProtocol | None:
        """The first one to give way."""
        return next((one for waiting in (self._new, self._idle) for one in waiting if one is not other_than), None)


class BoundedProtocol(H11Protocol):
    """A peer that sends no whole head within `header_timeout_s`, or takes nothing for `send_timeout_s`, is cut.

    A stream that was cut can be resumed: every frame of it carries its position.
    """

    header_timeout_s = 10.0
    send_timeout_s = 30.0
    on_cut: Callable[[], None] = staticmethod(lambda: None)
    waiting = WaitingConnections()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = StrictConnection(h11.SERVER, self.config.h11_max_incomplete_event_size or DEFAULT_HEAD_BYTES)
        self._waiting_for_head: asyncio.TimerHandle | None = None
        self._waiting_for_reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()  # unless a further request is under way already

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self.waiting.leave(self)
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
            self.waiting.leave(self)
            if self._waiting_for_head is not None:
                self._waiting_for_head.cancel()
                self._waiting_for_head = None
            return
        self.waiting.enter(self, served=self.cycle is not None)
        if self._waiting_for_head is None and self.timeout_keep_alive_task is None:
            self._waiting_for_head = self.loop.call_later(self.header_timeout_s, self._cut, "sends no whole request")

    def _make_room(self) -> None:
        """Let a connection that waits give way to this one, where the server has as many as it takes."""
        while self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            oldest = self.waiting.oldest(other_than=self)
            if oldest is None:
                return
            self.waiting.leave(oldest)
            self.connections.discard(oldest)
            oldest._cut("waits, and others need its place")

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
    times: dict[str, Any] = {
        "header_timeout_s": header_timeout_s,
        "send_timeout_s": send_timeout_s,
        "on_cut": staticmethod(on_cut),
    }
    times["waiting"] = WaitingConnections()
    return type("BoundedProtocol", (BoundedProtocol,), times)
