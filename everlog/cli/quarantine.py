"""`everlog quarantine …`: records that could not be applied, and how their journals go on."""

from __future__ import annotations

from typing import Any

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import NotFound
from everlog.cli.journal import id_argument, topic_argument
from everlog.cli.output import TableRows, encode, moment, plain, show
from everlog.cli.settings import CliSettings, with_log
from everlog.errors import InvalidInput
from everlog.journal.quarantine import WaitingItem

PAGE = 100


@click.group(cls=Group)
def quarantine() -> None:
    """Look at records that cannot be applied; retry or skip them.

    Such a record halts its journal only: it and all later ones of that journal wait here until they are tried again
    or skipped. Misplaced records belong to no journal and halt nothing.
    """


def _document(item: WaitingItem, *, raw: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "topic": item.topic,
        "id": item.id,
        "partition": item.partition,
        "offset": item.offset,
        "kind": item.kind,
        "reason": item.reason,
        "timestamp": item.timestamp,
    }
    if raw:
        found |= {
            "key": item.key,
            "action": item.action,
            "value": item.value,
            "headers": [{"name": name, "value": value} for name, value in item.headers],
        }
    return found


@quarantine.command("list", cls=CliCommand)
@click.argument("topic", required=False)
@with_log()
async def list_(log: Everlog, settings: CliSettings, /, topic: str | None) -> None:
    """List what waits, of one topic or of all."""
    table = TableRows("topic", "partition", "offset", "time (UTC)", "kind", "id", "reason")
    rows: list[list[str]] = []
    count = 0
    async for item in log.quarantine.list(topic):
        count += 1
        if settings.as_json:
            click.echo(encode(_document(item, raw=False)))
            continue
        name = "-" if item.id is None else plain(item.id)
        place = [item.topic, str(item.partition), str(item.offset), moment(item.timestamp)]
        rows.append([*place, item.kind, name, plain(item.reason)])
        if len(rows) == PAGE:
            table.add(rows)
            rows = []
    table.add(rows)
    if not count and not settings.as_json:
        click.echo("nothing is in quarantine")


@quarantine.command("show", cls=CliCommand, examples=["everlog quarantine show orders 0 17"])
@topic_argument
@click.argument("partition", type=int)
@click.argument("offset", type=int)
@with_log()
async def show_(log: Everlog, settings: CliSettings, /, topic: str, partition: int, offset: int) -> None:
    """Print one record with its raw bytes (in JSON as base64)."""
    try:
        item = await log.quarantine.show(topic, partition, offset)
    except InvalidInput as error:
        raise NotFound(str(error)) from error
    if settings.as_json:
        click.echo(encode(_document(item, raw=True)))
        return
    lines = [f"{'position':<10}{item.position}"]
    lines += [f"{name:<10}{value}" for name, value in (("id", item.id), ("kind", item.kind), ("reason", item.reason))]
    lines.append(f"{'time':<10}{moment(item.timestamp)} UTC")
    lines += [f"{name:<10}{value!r}" for name, value in (("key", item.key), ("action", item.action))]
    lines += [f"{'header':<10}{name}: {value!r}" for name, value in item.headers]
    lines.append(f"{'value':<10}{item.value!r}")
    click.echo("\n".join(lines))


@quarantine.command(cls=CliCommand)
@topic_argument
@id_argument
@with_log()
async def retry(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str) -> None:
    """Apply a journal's waiting records again, in order.

    Useful after an upgrade that can read them. One that still cannot be applied halts the journal again.
    """
    token = await log.quarantine.retry(topic, journal_id)
    _show_token(settings, topic, journal_id, str(token), "trying again")


@quarantine.command(cls=CliCommand)
@topic_argument
@id_argument
@click.option("--offset", type=int, metavar="N", help="Leave out this record.  [the one that halted the journal]")
@with_log()
async def skip(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, offset: int | None) -> None:
    """Let a journal go on without the record that halted it."""
    token = await log.quarantine.skip(topic, journal_id, offset)
    _show_token(settings, topic, journal_id, str(token), "going on without it")


def _show_token(settings: CliSettings, topic: str, journal_id: str, token: str, what: str) -> None:
    document = {"topic": topic, "id": journal_id, "token": token}
    show(settings.as_json, document, f"{plain(journal_id)}: {what}, token {token}")
