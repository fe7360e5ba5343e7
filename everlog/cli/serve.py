"""`everlog serve`: the HTTP server, alone or beside the pipeline in `everlog up`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.output import show
from everlog.cli.settings import CliSettings, with_log
from everlog.cli.status import stop_signals

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--host", metavar="ADDRESS", help="Where the server listens.  [127.0.0.1]"),
    click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="At which port; 0: any.  [8080]"),
    click.option("--writable", is_flag=True, help="Without tokens: let the console act, not only show."),
    click.option("--anonymous", is_flag=True, help="Let everybody in at a public address, without tokens."),
)


def server_options(command: F) -> F:
    """Where the server listens, and whom it lets in."""
    decorated: Any = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ServerOptions:
    """What was said about the server; what was not comes from `[server]`."""

    host: str | None = None
    port: int | None = None
    writable: bool = False
    anonymous: bool = False

    @asynccontextmanager
    async def serving(self, log: Everlog, *, any_port: bool = False) -> AsyncIterator[str]:
        """The server at work. `any_port`: if the usual port is taken and none was asked for, another one will do."""
        from everlog.console.server import serving

        config = log.config.server
        host, port = self.host or config.host, config.port if self.port is None else self.port
        any_port = any_port and self.port is None
        async with serving(
            log, host=host, port=port, any_port=any_port, writable=self.writable, anonymous=self.anonymous
        ) as url:
            yield url


@click.command(cls=CliCommand, examples=["everlog serve", "everlog serve --port 9000 --data /var/lib/everlog"])
@server_options
@with_log(create=True)
async def serve(log: Everlog, settings: CliSettings, /, **options: Any) -> None:
    """Serve journals, tags, projections, queues and documents over HTTP, until Ctrl-C."""
    with stop_signals("" if settings.as_json else "stopping … (once more: at once)") as stop:
        async with ServerOptions(**options).serving(log) as url:
            show(
                settings.as_json,
                {"url": url},
                f"Everlog in {log.config.where} serves {url} ({url}/openapi)",
            )
            await stop.wait()
