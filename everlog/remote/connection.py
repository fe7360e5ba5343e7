"""Requests to a server, for the clients of its parts: a refusal there is the same error here."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from everlog.errors import (
    AccessDenied,
    EverlogError,
    InvalidConfig,
    InvalidDocument,
    MissingExtra,
    StorageFailed,
    Unreachable,
)
from everlog.wire.errors import error_of

try:
    import httpx
    from httpx_sse import EventSource, ServerSentEvent
except ImportError as error:
    raise MissingExtra("server") from error

LINES = "application/x-ndjson"
TIMEOUT_S = 30.0
TOKEN_VARIABLE = "EVERLOG_TOKEN"  # noqa: S105  # the name of a variable
# Many requests may be under way at once; streams stay open. An idle connection is given up earlier than a server, which
# keeps it for 5 s, closes it: a request that meets the end of its connection would fail.
_LIMITS = httpx.Limits(max_connections=200, max_keepalive_connections=50, keepalive_expiry=2.0)


def open_client(address: str, token: str | None) -> httpx.AsyncClient:
    """A client of a server; the token may come from the environment, never from the address."""
    url = httpx.URL(address.rstrip("/"))
    if url.userinfo or url.query:
        raise InvalidConfig("a token does not belong into an address: connect(address, token=…), or EVERLOG_TOKEN")
    known = token or os.environ.get(TOKEN_VARIABLE)
    headers = {} if known is None else {"Authorization": f"Bearer {known}"}
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers, limits=_LIMITS)


class Wire:
    """Sends requests and raises what the server refuses."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def send(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = ...,
        content: str | None = None,
    ) -> httpx.Response:
        """One request with its answer; `content` is a body that is JSON already."""
        sent = content if body is ... else msgspec.json.encode(body)
        try:
            answer = await self._http.request(method, url, params=_given(params), headers=headers, content=sent)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise refusal_of(answer)
        return answer

    async def lines(self, url: str, params: Mapping[str, Any] | None = None) -> AsyncGenerator[bytes, None]:
        """JSON lines, as they come. A line that says what went wrong is raised."""
        async with (
            self._stream(url, params, {"Accept": LINES}, patience=TIMEOUT_S) as answer,
            aclosing(_split(answer)) as lines,
        ):
            async for line in lines:
                if line.startswith(b'{"error":'):
                    raise refusal(500, msgspec.json.decode(line)["error"])
                if line:
                    yield line

    async def events(
        self,
        url: str,
        params: Mapping[str, Any] | None = None,
        *,
        last: str | None = None,
        patience: float | None = TIMEOUT_S,
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Server-sent events, as they come, behind the `last` one that was seen. One that says `failed` is raised."""
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": last})
        async with (
            self._stream(url, params, headers, patience=patience) as answer,
            aclosing(EventSource(answer).aiter_sse()) as events,
        ):
            async for event in events:
                if event.event == "failed":
                    reason = msgspec.json.decode(event.data)
                    raise refusal(reason.get("status", 500), reason)
                yield event

    @asynccontextmanager
    async def _stream(
        self, url: str, params: Mapping[str, Any] | None, headers: Mapping[str, str], *, patience: float | None
    ) -> AsyncIterator[httpx.Response]:
        """A long answer; nothing for `patience` seconds is an outage."""
        how: dict[str, Any] = {"params": _given(params), "headers": headers, "timeout": httpx.Timeout(patience)}
        try:
            async with self._http.stream("GET", url, **how) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise refusal_of(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"the server at {self._http.base_url} does not answer: {str(error) or type(error).__name__}")


async def _split(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines, which only a line feed ends: `httpx` would also split at separators that text may have inside."""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    yield rest


def _given(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if params is None else {name: value for name, value in params.items() if value is not None}


def refusal_of(answer: httpx.Response) -> EverlogError:
    """The error that the server meant."""
    try:
        return refusal(answer.status_code, answer.json())
    except (ValueError, KeyError, TypeError, AttributeError):
        return StorageFailed(f"{answer.url} answers {answer.status_code} without a reason: is it an Everlog server?")


def refusal(status: int, body: dict[str, Any]) -> EverlogError:
    """The error that a status and a body stand for."""
    code, text, extra = str(body["code"]), str(body["description"]), body.get("extra")
    known = error_of(status, code, text, extra)
    if known is not None:
        return known
    if status in (401, 403):
        return AccessDenied(f"{text} (connect with token=…, or set {TOKEN_VARIABLE})")
    if status < 500:
        return InvalidDocument(code, text, **(extra or {}))
    return Unreachable(text) if status == 503 else StorageFailed(text)
