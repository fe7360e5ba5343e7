"""Running the application with uvicorn inside an event loop that is ours."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from everlog.api import Everlog
from everlog.config import Config
from everlog.errors import InvalidConfig, MissingExtra, PortTaken
from everlog.server.app import Application, AppPart, make_app
from everlog.server.protocol import bounded
from everlog.server.routes.nodes import joined
from everlog.server.security.guard import Security, is_loopback

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra("server") from error

SHUTDOWN_TIMEOUT_S = 3
BACKLOG = 2048


class _Server(uvicorn.Server):
    """Leaves the signals to the caller."""

    def install_signal_handlers(self) -> None: ...


def check_address(host: str, security: Security, *, anonymous: bool) -> None:
    """An address that others can reach needs tokens: encryption alone says nothing about who asks."""
    if is_loopback(host) or security.tokens.needed or anonymous:
        return
    raise InvalidConfig(
        f"{host} can be reached by others, and there are no tokens: make one with 'everlog token new', or let "
        "all callers in with --anonymous"
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at the address, or an error that says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns Nagle's algorithm off only then, which would cost 40 ms per answer.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        # At once: Linux lets two sockets bind one address until one of them listens, and reports nothing.
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise PortTaken("the server", f"{host}:{port}", f"{reason}: choose another one with --port") from error
    return made


def _listen(host: str, port: int, *, any_port: bool) -> socket.socket:
    try:
        return listen(host, port)
    except PortTaken:
        if not any_port:
            raise
        return listen(host, 0)


def _settings(config: Config, app: Application) -> uvicorn.Config:
    server = config.server
    found = uvicorn.Config(
        app,
        http=bounded(
            server.max_header_bytes, server.header_timeout_s, server.send_timeout_s, app.state.http_counters.note_cut
        ),
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        server_header=False,
        # The caller is the peer of the connection: no header may say otherwise.
        proxy_headers=False,
        limit_concurrency=server.max_connections,
        ssl_certfile=server.cert_file,
        ssl_keyfile=server.key_file,
    )
    try:
        found.load()
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"[server] cert_file and key_file cannot be used: {error}") from error
    if found.ssl is not None:
        found.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return found


@asynccontextmanager
async def serving(
    log: Everlog,
    *,
    host: str,
    port: int,
    any_port: bool = False,
    writable: bool = False,
    anonymous: bool = False,
    parts: Sequence[AppPart] = (),
) -> AsyncIterator[str]:
    """The server at work; gives its address. Port 0: any free one; `any_port`: also if the port is taken.

    The rest is as `[server]` says, or more open. `parts`: what stands on the server, such as the console.
    """
    security = Security.of(log.config, log.parts.clock, local=is_loopback(host), writable=writable)
    check_address(host, security, anonymous=anonymous or log.config.server.anonymous)
    app = make_app(log, security=security, parts=parts)
    config = _settings(log.config, app)
    bound = _listen(host, port, any_port=any_port)
    server = _Server(config)
    task = asyncio.create_task(server._serve(sockets=[bound]))
    try:
        while not server.started:
            if task.done():
                await task
                raise RuntimeError("the server ended while it started")
            await asyncio.sleep(0.01)
        scheme = "http" if config.ssl is None else "https"
        name = f"[{host}]" if ":" in host else host
        address = f"{scheme}://{name}:{bound.getsockname()[1]}"
        async with joined(app, log, address):
            yield address
    finally:
        app.state.stopping.set()
        server.should_exit = True
        await task
        bound.close()
