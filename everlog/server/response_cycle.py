"""A request and its answer on the wire: head and body of an answer whose length is known go out in one piece."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import HEADER_RE, STATUS_LINE, RequestResponseCycle

_CONTROLS = bytes([*range(0x20), 0x7F]).replace(b"\t", b"")


@lru_cache(maxsize=512)
def header_name(name: bytes) -> bytes:
    """A name as it is sent."""
    if HEADER_RE.search(name):
        raise RuntimeError(f"this is no name of a header: {name!r}")
    return name.lower()


class ResponseCycle(RequestResponseCycle):
    """uvicorn's, but a head waits for the body that belongs to it: a system call less, and a packet."""

    _head = b""

    def has_come(self) -> bool:
        """Whether the whole body is here."""
        return not self.more_body

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind, expected = message["type"], "http.response.body" if self.response_started else "http.response.start"
        if kind != expected or self.response_complete:
            raise RuntimeError(f"{kind} is sent where {expected} is expected, or behind the end")
        if self.response_started:
            self._send_body(message.get("body", b""), last=not message.get("more_body", False))
            return
        self.response_started, self.waiting_for_100_continue = True, False
        head = self._head_of(message["status"], [*self.default_headers, *message.get("headers", ())])
        if self.chunked_encoding is False:
            self._head = head
        else:
            self.transport.write(head)

    def _head_of(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        lines, values = [STATUS_LINE[status]], []
        closes = False
        for given, value in headers:
            name = header_name(given)
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif name == b"connection":
                closes |= b"close" in [token.strip() for token in value.lower().split(b",")]
            values.append(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        joined = b"".join(values)
        if len(joined.translate(None, _CONTROLS)) != len(joined):
            raise RuntimeError("a header has a control character, which might begin another one")
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _send_body(self, body: bytes, *, last: bool) -> None:
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length, data = 0, head
        elif self.chunked_encoding:
            data = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if last else b"")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (last and self.expected_content_length):
                raise RuntimeError("a body is longer or shorter than its Content-Length")
            data = head + body if head else body
        if data:
            self.transport.write(data)
        if last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
