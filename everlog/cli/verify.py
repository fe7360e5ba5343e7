"""`everlog verify …`: count again, and compare."""

from __future__ import annotations

import click

from everlog.cli.commands import Command, Group
from everlog.cli.exits import FAILED
from everlog.cli.output import plain, show
from everlog.cli.projections import app_option, declared, name_argument
from everlog.cli.settings import Settings, with_log
from everlog.client import Everlog


@click.group(cls=Group)
def verify() -> None:
    """Count again, and compare with what is there."""


@verify.command(cls=Command, examples=["everlog verify projection owed --app shop.views:app --table owed"])
@name_argument
@app_option
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="A table; may be repeated.  [all it declares]")
@with_log()
async def projection(log: Everlog, settings: Settings, /, name: str, app: str | None, tables: tuple[str, ...]) -> None:
    """Run a projection again from the beginning, into a copy, and compare tables of its view.

    Exit code 1 if they differ. On Cassandra the projection is paused meanwhile.
    """
    differences = await log.projections.verify(declared(log, name, app), *tables)
    for one in differences:
        same = "as counted again" if one.equal else f"lacks {one.missing} rows and has {one.surplus} too many"
        document = {"table": one.table, "rows": one.rows, "missing": one.missing, "surplus": one.surplus}
        show(settings.as_json, document, f"{plain(one.table)}: {one.rows} rows, {same}")
    if not all(one.equal for one in differences):
        raise click.exceptions.Exit(FAILED)
