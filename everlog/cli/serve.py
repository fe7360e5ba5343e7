"""`everlog serve`: the HTTP server."""

from __future__ import annotations

import click

from everlog.cli.commands import Command
from everlog.cli.output import show
from everlog.cli.settings import Settings, with_log
from everlog.cli.status import stop_signals
from everlog.client import Everlog


@click.command(cls=Command, examples=["everlog serve", "everlog serve --port 9000 --data /var/lib/everlog"])
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="At which port; 0: any free one.  [8080]")
@with_log(create=True)
async def serve(log: Everlog, settings: Settings, /, host: str | None, port: int | None) -> None:
    """Serve documents over HTTP, until Ctrl-C."""
    from everlog.http.server import serving

    server = log.config.server
    where, number = host or server.host, server.port if port is None else port
    with stop_signals("" if settings.as_json else "stopping … (once more: at once)") as stop:
        async with serving(log, host=where, port=number) as url:
            show(
                settings.as_json,
                {"url": url},
                f"Everlog in {log.config.where} serves {url} ({url}/openapi)",
            )
            await stop.wait()
