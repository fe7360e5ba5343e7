"""`everlog projections rebuild`, `copies`, `switch`, `abort`: a second copy of a view beside the running one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.output import moment, plain, show
from everlog.cli.projections import app_option, declared, name_argument
from everlog.cli.settings import CliSettings, with_log
from everlog.projections.copies import Copies, CopyRequest, Difference


@click.command(
    cls=CliCommand,
    examples=["everlog projections rebuild owed --app shop.views:app", "everlog projections rebuild owed --request"],
)
@name_argument
@app_option
@click.option(
    "--schema",
    type=click.File(),
    help="A file with statements, ended by ;, that make tables which shall look different from now on.",
)
@click.option("--follow", is_flag=True, help="Keep the copy up to date until somebody switches or aborts.")
@click.option("--request", is_flag=True, help="Leave it to whoever runs the projection; it follows, too.")
@with_log()
async def rebuild(
    log: Everlog,
    settings: CliSettings,
    /,
    name: str,
    app: str | None,
    schema: IO[str] | None,
    follow: bool,
    request: bool,
) -> None:
    """Fill a second copy of a view from the beginning, beside the running one.

    Readers see the old copy until 'switch'. A rebuild that was cut off goes on where it was.
    """
    if request:
        if app is not None or schema is not None or follow:
            raise click.UsageError("--request leaves it to whoever runs the projection: without the other options")
        copies = await log.projections.request_rebuild(name)
        show(settings.as_json, document(name, copies), asked(name, "a second copy"))
        return
    projection = declared(log, name, app)
    create = [] if schema is None else [one for one in schema.read().split(";") if one.strip()]
    console = Console(stderr=True)
    columns = (TextColumn("events"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    handled = 0
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)

        def on_progress(done: int, waiting: int | None) -> None:
            nonlocal handled
            handled = done
            progress.update(task, completed=done, total=None if waiting is None else done + waiting)

        number = await log.projections.rebuild(projection, create=create, on_progress=on_progress, follow=follow)
    filled = {"name": name, "copy": number, "handled": handled}
    text = (
        f"copy {number} is filled, {handled:,} events; 'everlog projections switch {plain(name)}' lets readers see it"
    )
    show(settings.as_json, filled, f"{plain(name)}: {text}")


@click.command(cls=CliCommand, examples=["everlog projections copies owed --json"])
@name_argument
@with_log()
async def copies(log: Everlog, settings: CliSettings, /, name: str) -> None:
    """Say which copies of a view there are, and how far a rebuild or verification is that was asked for."""
    await log.projections.check_view(name)
    found = await log.projections.copies(name)
    show(settings.as_json, document(name, found), "\n".join(_lines(name, found)))


def asked(name: str, what: str) -> str:
    """What to tell whoever asked for something that needs the handler."""
    return (
        f"{plain(name)}: {what} is asked for; whoever runs it does that ('everlog projections run'), and "
        f"'everlog projections copies {plain(name)}' says how far it is"
    )


def difference_line(one: Difference) -> str:
    same = "as counted again" if one.equal else f"lacks {one.missing} rows and has {one.surplus} too many"
    return f"{plain(one.table)}: {one.rows} rows, {same}"


def _lines(name: str, found: Copies) -> Iterator[str]:
    parts = [f"copy {found.current} is read"]
    if found.building is not None:
        parts.append(f"copy {found.building} is {'filled' if found.filled else 'being filled'}")
    if found.previous is not None:
        parts.append(f"copy {found.previous} is kept to go back to")
    yield f"{plain(name)}: {', '.join(parts)}"
    for kind, request in (("rebuild", found.rebuild), ("verification", found.verify)):
        if request is not None:
            yield f"{kind}: {_progress(request)}"
            yield from (f"  {difference_line(one)}" for one in request.differences)


def _progress(request: CopyRequest) -> str:
    if request.state == "waiting":
        return f"asked for at {moment(request.asked_ms)}; it begins when a process with the projection runs"
    if request.state == "running":
        return f"running, {request.handled:,} of {'?' if request.total is None else f'{request.total:,}'} events"
    ended = moment(request.ended_ms or 0)
    return f"done at {ended}" if request.error is None else f"failed at {ended}: {plain(request.error)}"


@click.command(cls=CliCommand, examples=["everlog projections switch owed", "everlog projections switch owed --back"])
@name_argument
@click.option("--back", is_flag=True, help="Go back to the copy that was read before.")
@with_log()
async def switch(log: Everlog, settings: CliSettings, /, name: str, back: bool) -> None:
    """Let readers and runners go to the copy that was filled. The old one stays for a way back."""
    copies = await log.projections.switch(name, back=back)
    show(settings.as_json, document(name, copies), f"{plain(name)}: copy {copies.current} is read from now on")


@click.command(cls=CliCommand)
@name_argument
@with_log()
async def abort(log: Everlog, settings: CliSettings, /, name: str) -> None:
    """Drop the copy that is being built."""
    copies = await log.projections.abort(name)
    show(settings.as_json, document(name, copies), f"{plain(name)}: the copy is dropped, copy {copies.current} stays")


def document(name: str, copies: Copies) -> dict[str, Any]:
    """Copies as JSON."""
    return {"name": name, **copies.shown()}


def add_to(group: click.Group) -> None:
    """These are commands of `everlog projections`."""
    for command in (rebuild, copies, switch, abort):
        group.add_command(command)
