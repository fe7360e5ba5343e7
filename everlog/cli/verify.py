"""`everlog verify …`: count again, and compare."""

from __future__ import annotations

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import FAILED
from everlog.cli.output import plain, show
from everlog.cli.projections import app_option, declared, name_argument
from everlog.cli.rebuild import asked, difference_line, document
from everlog.cli.settings import CliSettings, with_log


@click.group(cls=Group)
def verify() -> None:
    """Count again, and compare with what is there."""


@verify.command(
    cls=CliCommand,
    examples=[
        "everlog verify projection owed --app shop.views:app --table owed",
        "everlog verify projection owed --request",
    ],
)
@name_argument
@app_option
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="A table; may be repeated.  [all it declares]")
@click.option("--request", is_flag=True, help="Leave it to whoever runs the projection.")
@click.option("--cancel", is_flag=True, help="Stop what was asked for with --request, or forget what it found.")
@with_log()
async def projection(
    log: Everlog,
    settings: CliSettings,
    /,
    name: str,
    app: str | None,
    tables: tuple[str, ...],
    request: bool,
    cancel: bool,
) -> None:
    """Run a projection again from the beginning, into a copy, and compare tables of its view.

    Exit code 1 if they differ. On Cassandra the projection is paused meanwhile.
    """
    if request or cancel:
        if (request and cancel) or app is not None or tables:
            raise click.UsageError("--request or --cancel, without the other options: it compares all declared tables")
        await _ask(log, settings, name, cancel)
        return
    differences = await log.projections.verify(declared(log, name, app), *tables)
    for one in differences:
        show(settings.as_json, one._asdict(), difference_line(one))
    if not all(one.equal for one in differences):
        raise click.exceptions.Exit(FAILED)


async def _ask(log: Everlog, settings: CliSettings, name: str, cancel: bool) -> None:
    if cancel:
        await log.projections.check_view(name)
        copies = await log.projections.cancel_verify(name)
        show(settings.as_json, document(name, copies), f"{plain(name)}: no verification is asked for any more")
    else:
        copies = await log.projections.request_verify(name)
        show(settings.as_json, document(name, copies), asked(name, "a verification"))
