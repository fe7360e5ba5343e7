"""Calls between processes that use one queue on Cassandra: HTTP to the owner of a shard, datagrams for "look now".

A process that owns a shard listens at an address, which stands in the shard's row. A call names the owner that it is
meant for: another process at the same address refuses it. A datagram may get lost; nothing but speed depends on it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from everlog.errors import InvalidConfig, MissingExtra, PortTaken
from everlog.queues.operations import Operation

try:
    import httpx
    import uvicorn
except ImportError as error:
    raise MissingExtra("server") from error

logger = logging.getLogger("everlog.queues")

PATH = "/queue-calls"
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 100
STOP_S = 2
MISDIRECTED = 421
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Call(msgspec.Struct, frozen=True):
    """Operations for the owner of a shard. (sender, number) names it: the same one again is not done again.

    `life`: of which of the queues with this name the sender knows.
    """

    owner: str
    queue: str
    shard: int
    sender: str
    number: int
    nudge: str
    operations: list[Operation]
    life: int


class Reply(msgspec.Struct, frozen=True):
    """The outcomes, as `wire` has them, and what the owner's clock said."""

    now_ms: int
    outcomes: bytes


class NotSent(Exception):
    """The call did not reach the owner: nothing of it was done."""


class NoAnswer(Exception):
    """The call was sent and not answered: it may have been done."""


Serve = Callable[[Call], Awaitable[Reply | None]]
_decode_call = msgspec.msgpack.Decoder(Call).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode
_encode = msgspec.msgpack.Encoder().encode


class _Server(uvicorn.Server):
    """Leaves the signals to the program that runs it."""

    def install_signal_handlers(self) -> None: ...


class CallServer:
    """Where a process answers calls. `serve` gives None for a call that is not for this process."""

    def __init__(self, host: str, token: str | None, serve: Serve) -> None:
        check_host(host, token)
        self._host = host
        self._token = token
        self._serve = serve
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._bound: socket.socket | None = None

    async def start(self) -> str:
        """Listen at a free port; the address."""
        self._bound = _bind(self._host)
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server._serve(sockets=[self._bound]), name="everlog-queue-calls")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise PortTaken("the owner of queues", self._host, "it ended while it started")
            await asyncio.sleep(0.005)
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._bound.getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        if self._bound is not None:
            self._bound.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        status, body = await self._answer(scope, receive)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Any, receive: Any) -> tuple[int, bytes]:
        if scope["path"] != PATH or scope["method"] != "POST":
            return 404, b""
        if self._token is not None:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                return 401, b""
        body = await _read(receive)
        if body is None:
            return 413, b""
        try:
            call = _decode_call(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 400, b""
        reply = await self._serve(call)
        return (MISDIRECTED, b"") if reply is None else (200, _encode(reply))


class Caller:
    """Sends calls to other processes."""

    def __init__(self, token: str | None, timeout_s: float) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout_s, limits=limits, trust_env=False)

    async def send(self, address: str, call: Call) -> Reply:
        try:
            answer = await self._http.post(f"{address}{PATH}", content=_encode(call))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            raise NotSent(f"{address}: {error!r}") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"{address}: {error!r}") from error
        if answer.status_code in (401, 404, 413, MISDIRECTED):
            raise NotSent(f"{address} answers {answer.status_code}")
        if answer.status_code != 200:
            raise NoAnswer(f"{address} answers {answer.status_code}")
        try:
            return _decode_reply(answer.content)
        except msgspec.DecodeError as error:
            raise NoAnswer(f"{address}: {error}") from error

    async def close(self) -> None:
        await self._http.aclose()


class Nudges(asyncio.DatagramProtocol):
    """Datagrams with the name of a queue: look now."""

    def __init__(self, on_nudge: Callable[[str], None]) -> None:
        self._on_nudge = on_nudge
        self._transport: asyncio.DatagramTransport | None = None
        self.address = ""

    async def open(self, host: str) -> str:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, 0))
        found = self._transport.get_extra_info("sockname")
        self.address = f"{found[0]} {found[1]}"
        return self.address

    def datagram_received(self, data: bytes, addr: Any) -> None:
        with suppress(UnicodeDecodeError):
            self._on_nudge(data[:200].decode())

    def error_received(self, error: Exception) -> None:
        """No process is there: it polls, or is gone."""

    def send(self, address: str, queue: str) -> None:
        host, _, port = address.partition(" ")
        if self._transport is not None and port.isdecimal():
            try:
                self._transport.sendto(queue.encode(), (host, int(port)))
            except OSError as error:
                logger.debug("no nudge to %s: %s", address, error)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def check_host(host: str, token: str | None) -> None:
    """Other machines may call only if they can show that they may."""
    if host not in LOOPBACK and token is None:
        raise InvalidConfig(
            f"[queue] host = {host!r} can be reached from elsewhere: set [server] cluster_token, the same everywhere"
        )
    if host in ("0.0.0.0", "::"):  # noqa: S104
        raise InvalidConfig(f"[queue] host is where others find this machine: name its address, not {host}")


def _bind(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns Nagle's algorithm off only then.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.bind((host, 0))
    except OSError as error:
        made.close()
        raise PortTaken("the owner of queues", host, f"{error.strerror}: correct [queue] host") from error
    return made


async def _read(receive: Any) -> bytes | None:
    """The whole body; None if it is too large or the caller hung up."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(chunks)
