"""HTTP/1.1 connections that cannot be held for nothing.

uvicorn's own protocol waits forever for the first request, for the rest of a request's head, and for a peer that does
not read. This one gives all three a time; bodies have theirs where they are read (requests.py).

The invariant: a connection without a request under way never takes the place of one with it. When all places are taken,
the one that has waited longest for its first request is cut, and if there is none, the one that is idle for longest.
Only when all are at work is a request answered with 503. And a request says in one way only where its body ends.

llhttp reads heads and chunks, and refuses nearly all that is ambiguous. It has no limits, and goes on to the next
request by itself; so each request has a parser of its own, which is given the bytes of this request alone. The end of a
head is found here first: so its size is known, and what stands behind a request waits, as bytes, until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everlog.server.response_cycle import ResponseCycle

log = logging.getLogger("everlog.http")

DEFAULT_HEAD_BYTES = 64 * 1024
_END = b"\r\n\r\n"
# llhttp also takes empty lines before it, several spaces, and the versions 0.9 and 2.0. A tunnel is not to be had here.
_REQUEST_LINE = re.compile(rb"(?!CONNECT )([A-Z-]+) ([!-~]+) HTTP/1\.([01])\r\n")
_BARE_END = re.compile(rb"\n\r?\n")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)


class BadRequest(Exception):
    """What was sent is no request, or one that others may understand in another way."""


def single_meaning(head: bytes) -> bytes:
    """A head without what llhttp would take for more than it is.

    An upgrade is a wish, and not granted here: llhttp would take the body for another protocol's. The same length twice
    is one length (RFC 9110, section 8.6).
    """
    lower = head.lower()
    if b"\r\nupgrade:" in lower:
        head = _UPGRADE.sub(b"", head)
    if lower.count(b"\r\ncontent-length:") > 1:
        lengths = _LENGTH.findall(head)
        if len(set(lengths)) > 1:
            raise BadRequest("Content-Length twice, and not the same")
        head = _LENGTH.sub(b"", head, count=len(lengths) - 1)
    return head


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


class BoundedProtocol(HttpToolsProtocol):
    """A peer that sends no whole head within `header_timeout_s`, or takes nothing for `send_timeout_s`, is cut.

    A stream that was cut can be resumed: every frame of it carries its position.
    """

    max_head_bytes = DEFAULT_HEAD_BYTES
    header_timeout_s = 10.0
    send_timeout_s = 30.0
    on_cut: Callable[[], None] = staticmethod(lambda: None)
    waiting = WaitingConnections()

    # What llhttp could say as well is known here before it reads.
    on_message_begin = on_url = on_headers_complete = None  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting_for_head: asyncio.TimerHandle | None = None
        self._waiting_for_reader: asyncio.TimerHandle | None = None
        self._rest = b""  # behind what was parsed: a part of a head, or what waits until a request is answered
        # Of the request that is read:
        self._in_head = False
        self._in_message = False
        self._length: int | None = None
        self._chunked = False
        self._hosts = 0
        self._closes = False
        self._body_left = 0
        self._chunk_tail = b""
        self._framing_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._read(self._rest + data if self._rest else data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._rest and not self.transport.is_closing():
            self._read(self._rest)
        self._await_head()  # unless a further request is under way already

    def _read(self, data: bytes) -> None:
        """Take what came: one request at a time, the next one when the last is answered."""
        self._rest = b""
        try:
            while data and not self.transport.is_closing():
                if self._in_message:
                    data = self._take_chunks(data) if self._chunked else self._take_body(data)
                elif self.cycle is None or self.cycle.response_complete:
                    data = self._take_head(data)
                else:
                    self._rest = data
                    self.flow.pause_reading()
                    return
        except (BadRequest, httptools.HttpParserError) as error:
            log.warning("a request of %s is refused: %s", self.client, error.__context__ or error)
            if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
                self.transport.close()  # in the middle of an answer, which now has no end
            else:
                self.send_400_response("Invalid HTTP request received.")

    def _take_head(self, data: bytes) -> bytes:
        """The next request, if its head is whole; what stands behind the head."""
        end = data.find(_END) + len(_END)
        if end < len(_END):
            if len(data) > self.max_head_bytes or data[0] <= 0x20 or _BARE_END.search(data):
                raise BadRequest("its head has no end, or a wrong one")
            self._rest = data
            return b""
        if end > self.max_head_bytes:
            self._refuse_large_head()
            return b""
        head = data[:end]
        line = _REQUEST_LINE.match(head)
        if line is None:
            raise BadRequest("its first line is none")
        self.headers = []
        self.expect_100_continue = self._chunked = self._closes = False
        self._length, self._hosts = None, 0
        self._in_head = self._in_message = True
        self.parser = httptools.HttpRequestParser(self)  # nothing of one request, such as a trailer, gets into the next
        self.parser.feed_data(single_meaning(head))
        self._in_head = False
        self._begin(*line.groups())
        return data[end:]

    def _take_body(self, data: bytes) -> bytes:
        """A body whose length is known; what stands behind it."""
        piece = data[: self._body_left]
        self._body_left -= len(piece)
        self.parser.feed_data(piece)
        assert self._in_message == (self._body_left > 0)
        return data[len(piece) :]

    def _take_chunks(self, data: bytes) -> bytes:
        """The same in chunks. Such a body ends with an empty line: llhttp is given what comes up to the next one."""
        known = self._chunk_tail + data
        at = len(self._chunk_tail)
        while self._in_message and at < len(known):
            found = known.find(_END, max(0, at - len(_END) + 1))
            end = len(known) if found < 0 else found + len(_END)
            self._framing_bytes += end - at  # until some of it is body
            self.parser.feed_data(known[at:end])
            at = end
            if self._framing_bytes > self.max_head_bytes:
                raise BadRequest("its chunks are more frame than body")
        self._chunk_tail = known[max(0, at - len(_END) + 1) : at]
        return known[at:]

    def _begin(self, method: bytes, target: bytes, minor: bytes) -> None:
        """Hand the request over to the application."""
        old = minor == b"0"
        if self._hosts > 1 or (self._hosts == 0 and not old):
            raise BadRequest("it has no Host, or several")
        if self._chunked and (old or self._length is not None):
            raise BadRequest("Transfer-Encoding with Content-Length, or in HTTP/1.0")
        self._body_left, self._chunk_tail, self._framing_bytes = self._length or 0, b"", 0
        raw_path, _, query = target.partition(b"?")
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.0" if old else "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": method.decode("ascii"),
            "root_path": "",
            "path": raw_path.decode("ascii"),  # as it was sent: the application decodes segment by segment
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        self._unset_keepalive_if_required()
        app, limit = self.app, self.limit_concurrency
        if limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit):
            log.warning("a request of %s is refused: all %d places are taken", self.client, limit)
            app = service_unavailable
        self.cycle = ResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=not old and not self._closes,
            on_response=self.on_response_complete,
        )
        if not self._in_message:
            self.cycle.more_body = False
            self.cycle.message_event.set()
        self.scope["state"]["has_come"] = self.cycle.has_come
        self._start_asgi_task(self.cycle, app)

    def _refuse_large_head(self) -> None:
        text = b"the head of this request is too large"
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(text), text)
        )
        self.transport.close()

    # What llhttp calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # it stands behind a body in chunks, where it says nothing that anything here asks for
        name, value = name.lower(), value.rstrip(b" \t")
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or self._chunked:
                raise BadRequest("it has another Transfer-Encoding than chunked")
            self._chunked = True
        elif name == b"connection":
            self._closes |= b"close" in [token.strip() for token in value.lower().split(b",")]
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if not self._in_head:
            super().on_message_complete()

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


def bounded(
    max_head_bytes: int, header_timeout_s: float, send_timeout_s: float, on_cut: Callable[[], None]
) -> type[BoundedProtocol]:
    """The protocol with these limits, times in seconds; `on_cut` is called for every connection that it ends."""
    limits: dict[str, Any] = {
        "max_head_bytes": max_head_bytes,
        "header_timeout_s": header_timeout_s,
        "send_timeout_s": send_timeout_s,
        "on_cut": staticmethod(on_cut),
        "waiting": WaitingConnections(),
    }
    return type("BoundedProtocol", (BoundedProtocol,), limits)
