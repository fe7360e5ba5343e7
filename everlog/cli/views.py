"""`everlog docs view …`: read-only collections of what matches a template."""

from __future__ import annotations

from typing import Any

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.output import TableRows, encode, moment, plain, show
from everlog.cli.settings import CliSettings, with_log

PAGE = 100

path_argument = click.argument("path")


@click.group(cls=Group)
def view() -> None:
    """Define, look at and delete views; see what they cannot show, and try it again."""


@view.command(cls=CliCommand, examples=["everlog docs view put rich~ 'people/{*}' --filter 'money>1000'"])
@path_argument
@click.argument("template")
@click.option("--filter", "condition", metavar="FILTER", help="Which of them it shows.  [all]")
@with_log(create=True)
async def put(log: Everlog, settings: CliSettings, /, path: str, template: str, condition: str | None) -> None:
    """Make a read-only collection of all documents and elements that match TEMPLATE, and fill it."""
    made = await log.documents.put_view(path, template, condition)
    await log.documents.build_indexes()
    show(settings.as_json, _about(made), f"{plain(path)} shows {plain(template)}")


@view.command("list", cls=CliCommand)
@with_log()
async def list_views(log: Everlog, settings: CliSettings, /) -> None:
    """List the views."""
    found = [await log.documents.view(one.uri) for one in await log.documents.views()]
    if settings.as_json:
        for one in found:
            click.echo(encode(_about(one)))
        return
    TableRows("view", "template", "filter", "status", "set aside").add(
        [[one.uri, one.template, one.filter or "-", one.status, str(one.unshown)] for one in found]
    )


@view.command(cls=CliCommand)
@path_argument
@click.option("--after", default="", metavar="PATH", help="Only behind this path.")
@click.option("--limit", type=int, default=PAGE, metavar="N", help=f"At most N.  [{PAGE}]")
@with_log()
async def unshown(log: Everlog, settings: CliSettings, /, path: str, after: str, limit: int) -> None:
    """List what matches a view and cannot be shown in it, with the reasons."""
    found = await log.documents.unshown(path, after=after, limit=limit)
    if settings.as_json:
        for one in found:
            click.echo(encode(one))
        return
    TableRows("source", "since (UTC)", "attempts", "reason").add(
        [[one.source, moment(one.since_ms), str(one.attempts), plain(one.reason)] for one in found]
    )


@view.command(cls=CliCommand, examples=["everlog docs view retry rich~", "everlog docs view retry rich~ people/ann"])
@path_argument
@click.argument("source", required=False)
@with_log()
async def retry(log: Everlog, settings: CliSettings, /, path: str, source: str | None) -> None:
    """Try again what a view has set aside: one SOURCE, or all."""
    shown = left = 0
    after: str | None = ""
    while after is not None:
        done = await log.documents.retry_unshown(path, source=source, after=after, limit=PAGE)
        shown, left, after = shown + done.shown, left + done.left, done.next
    show(settings.as_json, {"shown": shown, "left": left}, f"{shown:,} put right, {left:,} are still set aside")


@view.command(cls=CliCommand)
@path_argument
@with_log()
async def delete(log: Everlog, settings: CliSettings, /, path: str) -> None:
    """Delete a view and what it shows; the sources stay."""
    await log.documents.delete_view(path)
    show(settings.as_json, {"path": path}, f"deleted the view {plain(path)}")


def _about(one: Any) -> dict[str, Any]:
    return {
        "path": one.uri,
        "template": one.template,
        "filter": one.filter,
        "status": one.status,
        "unshown": one.unshown,
    }
