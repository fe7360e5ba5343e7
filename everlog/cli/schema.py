"""`everlog docs schema …`: JSON Schemas of documents, and checks of what is stored."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.output import TableRows, encode, moment, plain, progress_bar, show
from everlog.cli.settings import CliSettings, with_log

if TYPE_CHECKING:
    from everlog.documents.schemas.model import DocumentSchema, SchemaCheck

LOOK_EVERY_S = 0.2
schema_argument = click.argument("schema_id", metavar="ID")


@click.group(cls=Group)
def schema() -> None:
    """Say what documents must look like, and check those that are stored."""


@schema.command(
    "set",
    cls=CliCommand,
    examples=[
        'everlog docs schema set order shop/orders~ \'{"required": ["total"]}\'',
        "everlog docs schema set person 'people/{*}' - < person.json",
    ],
)
@schema_argument
@click.argument("template")
@click.argument("text", metavar="[SCHEMA]", required=False)
@click.option("--check", "checking", is_flag=True, help="Then look through what is stored.")
@with_log(create=True)
async def set_(
    log: Everlog, settings: CliSettings, /, schema_id: str, template: str, text: str | None, checking: bool
) -> None:
    """Define or replace a schema. Without SCHEMA, or with '-', it comes from standard input."""
    from everlog.documents.bodies import decode_body

    body = decode_body(sys.stdin.buffer.read() if text in (None, "-") else str(text))
    made = await log.documents.put_schema(schema_id, template, body, check=checking)
    show(settings.as_json, _about(made), f"writes to {plain(template)} must fit {plain(schema_id)}")
    if checking:
        await _follow(log, settings, schema_id)


@schema.command("get", cls=CliCommand)
@schema_argument
@with_log()
async def get(log: Everlog, settings: CliSettings, /, schema_id: str) -> None:
    """Print a schema, or with --json all about it."""
    found = await log.documents.schema(schema_id)
    click.echo(
        encode({**_about(found), "schema": msgspec.Raw(found.text.encode())}) if settings.as_json else found.text
    )


@schema.command("list", cls=CliCommand)
@with_log()
async def list_(log: Everlog, settings: CliSettings, /) -> None:
    """List the schemas."""
    found = await log.documents.schemas()
    if settings.as_json:
        for one in found:
            click.echo(encode(_about(one)))
        return
    TableRows("schema", "for", "changed (UTC)").add(
        [[one.schema_id, plain(one.template), moment(one.modified_ms)] for one in found]
    )


@schema.command("delete", cls=CliCommand)
@schema_argument
@with_log()
async def delete(log: Everlog, settings: CliSettings, /, schema_id: str) -> None:
    """Delete a schema: writes need not fit it any more."""
    await log.documents.delete_schema(schema_id)
    show(settings.as_json, {"schemaId": schema_id}, f"deleted the schema {plain(schema_id)}")


@schema.command(
    "check", cls=CliCommand, examples=["everlog docs schema check order", "everlog docs schema check order --json"]
)
@schema_argument
@with_log()
async def check(log: Everlog, settings: CliSettings, /, schema_id: str) -> None:
    """Look through what is stored for documents that do not fit. With a server, it goes on there after Ctrl-C."""
    await log.documents.check_schema(schema_id)
    await _follow(log, settings, schema_id)


async def _follow(log: Everlog, settings: CliSettings, schema_id: str) -> None:
    """Show a check until its end."""
    with progress_bar("documents") as progress:
        while not (found := await log.documents.schema_check(schema_id)).ended:
            progress(found.checked, found.total)
            await asyncio.sleep(LOOK_EVERY_S)
    _show_check(settings, found)


def _show_check(settings: CliSettings, found: SchemaCheck) -> None:
    from everlog.wire.documents import check_body

    if settings.as_json:
        click.echo(encode(check_body(found)))
        return
    for problem in found.problems:
        for error in problem.errors:
            click.echo(f"{plain(problem.path)}  {plain(error.path) or '/'}  {plain(error.message)}")
    left = found.violations - len(found.problems)
    if left:
        click.echo(f"and {left:,} more documents")
    if found.state == "failed":
        click.echo(f"the check failed: {found.reason}")
    click.echo(f"looked at {found.checked:,} documents, {found.violations:,} do not fit {plain(found.schema_id)}")


def _about(found: DocumentSchema) -> dict[str, Any]:
    return {
        "schemaId": found.schema_id,
        "template_uri": found.template,
        "version": found.version,
        "modifiedAt": found.modified_ms,
    }
