"""Running the application with uvicorn inside an event loop that is ours."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everlog.client import Everlog
from everlog.errors import InvalidConfig, MissingExtra, PortTaken
from everlog.http.app import make_app
from everlog.http.nodes import joined

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra("server") from error

SHUTDOWN_SECONDS = 3
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _Server(uvicorn.Server):
    """Leaves the signals to whoever runs it."""

    def install_signal_handlers(self) -> None: ...


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address, or an error that says why not."""
    if host not in LOOPBACK:
        raise InvalidConfig(f"the server listens at this machine only, not at {host}: use 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns Nagle's algorithm off only then, which would cost 40 ms per answer.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise PortTaken("the server", f"{host}:{port}", f"{error.strerror}: choose another one with --port") from error
    return made


@asynccontextmanager
async def serving(log: Everlog, *, host: str, port: int) -> AsyncIterator[str]:
    """The server at work; gives its address. Port 0: any free one."""
    app = make_app(log)
    bound = listen(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )
    server = _Server(config)
    task = asyncio.create_task(server._serve(sockets=[bound]))
    try:
        while not server.started:
            if task.done():
                await task
                raise RuntimeError("the server ended while it started")
            await asyncio.sleep(0.01)
        address = f"http://{host}:{bound.getsockname()[1]}"
        async with joined(app, log, address):
            yield address
    finally:
        app.state.stopping.set()
        server.should_exit = True
        await task
        bound.close()
