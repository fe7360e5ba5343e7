"""`everlog projections rebuild`, `switch`, `abort`: a second copy of a view beside the running one."""

from __future__ import annotations

from typing import IO, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from everlog.cli.commands import Command
from everlog.cli.output import plain, show
from everlog.cli.projections import app_option, declared, name_argument
from everlog.cli.settings import Settings, with_log
from everlog.client import Everlog
from everlog.projections.copies import Copies


@click.command(
    cls=Command,
    examples=["everlog projections rebuild owed --app shop.views:app", "everlog projections rebuild owed --follow"],
)
@name_argument
@app_option
@click.option(
    "--schema",
    type=click.File(),
    help="A file with statements, ended by ;, that make tables which shall look different from now on.",
)
@click.option("--follow", is_flag=True, help="Keep the copy up to date until somebody switches or aborts.")
@with_log()
async def rebuild(
    log: Everlog, settings: Settings, /, name: str, app: str | None, schema: IO[str] | None, follow: bool
) -> None:
    """Fill a second copy of a view from the beginning, beside the running one.

    Readers see the old copy until 'switch'. A rebuild that was cut off goes on where it was.
    """
    projection = declared(log, name, app)
    create = [] if schema is None else [one for one in schema.read().split(";") if one.strip()]
    console = Console(stderr=True)
    columns = (TextColumn("events"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    handled = 0
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)

        def told(done: int, waiting: int | None) -> None:
            nonlocal handled
            handled = done
            progress.update(task, completed=done, total=None if waiting is None else done + waiting)

        number = await log.projections.rebuild(projection, create=create, told=told, follow=follow)
    document = {"name": name, "copy": number, "handled": handled}
    text = (
        f"copy {number} is filled, {handled:,} events; 'everlog projections switch {plain(name)}' lets readers see it"
    )
    show(settings.as_json, document, f"{plain(name)}: {text}")


@click.command(cls=Command, examples=["everlog projections switch owed", "everlog projections switch owed --back"])
@name_argument
@click.option("--back", is_flag=True, help="Go back to the copy that was read before.")
@with_log()
async def switch(log: Everlog, settings: Settings, /, name: str, back: bool) -> None:
    """Let readers and runners go to the copy that was filled. The old one stays for a way back."""
    copies = await log.projections.switch(name, back=back)
    show(settings.as_json, document(name, copies), f"{plain(name)}: copy {copies.current} is read from now on")


@click.command(cls=Command)
@name_argument
@with_log()
async def abort(log: Everlog, settings: Settings, /, name: str) -> None:
    """Drop the copy that is being built."""
    copies = await log.projections.abort(name)
    show(settings.as_json, document(name, copies), f"{plain(name)}: the copy is dropped, copy {copies.current} stays")


def document(name: str, copies: Copies) -> dict[str, Any]:
    """Copies as JSON."""
    found = msgspec.structs.asdict(copies)
    return {"name": name, **{field: found[field] for field in ("current", "building", "filled", "previous")}}


def add_to(group: click.Group) -> None:
    """These are commands of `everlog projections`."""
    for command in (rebuild, switch, abort):
        group.add_command(command)
