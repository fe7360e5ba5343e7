"""`everlog snapshot …`: save, load, list, delete."""

from __future__ import annotations

import sys
from typing import Any

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.journal import id_argument, missing, topic_argument
from everlog.cli.output import TableRows, encode, moment, payload_text, plain, show, snapshot_document
from everlog.cli.payload import PayloadOptions, parse_json, payload_options
from everlog.cli.settings import CliSettings, with_log
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import JournalNotFound
from everlog.journal.snapshots import Criteria


@click.group(cls=Group)
def snapshot() -> None:
    """Keep states of journals, to read them from there."""


@snapshot.command(
    cls=CliCommand,
    examples=["everlog snapshot save accounts account-1 --seq-nr 10 --json-payload '{\"balance\": 70}'"],
)
@topic_argument
@id_argument
@payload_options
@click.option("--seq-nr", type=int, required=True, metavar="N", help="The last seqNr that the state includes.")
@click.option("--metadata", metavar="JSON", help="Stored with the state.")
@with_log()
async def save(
    log: Everlog,
    settings: CliSettings,
    /,
    topic: str,
    journal_id: str,
    payload: PayloadOptions,
    seq_nr: int,
    metadata: str | None,
) -> None:
    """Save a state.

    A journal keeps the last ten; the same seqNr again overwrites.
    """
    value, about = payload.value(), parse_json("--metadata", metadata)
    await log.journal(topic).snapshots.save(journal_id, seq_nr=seq_nr, payload=value, metadata=about)
    document = {"topic": topic, "id": journal_id, "seq_nr": seq_nr}
    show(settings.as_json, document, f"saved the state of {plain(journal_id)} at seqNr {seq_nr}")


@snapshot.command(cls=CliCommand, examples=["everlog snapshot load accounts account-1 > state.json"])
@topic_argument
@id_argument
@click.option("--max-seq-nr", type=int, metavar="N", help="None newer than this.")
@with_log()
async def load(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, max_seq_nr: int | None) -> None:
    """Print the newest state: its payload as it was saved, or with --json all about it."""
    criteria = Criteria(max_seq_nr=MAX_SEQ_NR if max_seq_nr is None else max_seq_nr)
    found = await log.journal(topic).snapshots.load(journal_id, criteria)
    if found is None:
        if await log.journal(topic).pointer(journal_id) is None:
            raise await missing(log, topic, journal_id)
        raise JournalNotFound(f"{journal_id!r} has no such snapshot")
    if settings.as_json:
        click.echo(encode({"topic": topic, "id": journal_id, **snapshot_document(found)}))
    elif isinstance(found.data, bytes):
        sys.stdout.buffer.write(found.data)
        sys.stdout.buffer.flush()
    elif found.data is not None:
        click.echo(found.data, nl=sys.stdout.isatty() or not found.data.endswith("\n"))


@snapshot.command("list", cls=CliCommand)
@topic_argument
@id_argument
@with_log()
async def list_(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str) -> None:
    """List a journal's states, the oldest first."""
    found = await log.journal(topic).snapshots.list(journal_id)
    if not found and await log.journal(topic).pointer(journal_id) is None:
        raise await missing(log, topic, journal_id)
    if settings.as_json:
        for one in found:
            click.echo(encode({"topic": topic, "id": journal_id, **snapshot_document(one)}))
        return
    rows = [[str(one.seq_nr), moment(one.timestamp), payload_text(one.payload_type, one.data)] for one in found]
    TableRows("seqNr", "time (UTC)", "state").add(rows)


@snapshot.command(cls=CliCommand)
@topic_argument
@id_argument
@click.option("--seq-nr", type=int, metavar="N", help="The state at this seqNr.")
@click.option("--max-seq-nr", type=int, metavar="N", help="All states up to this seqNr.")
@click.option("--all", "everything", is_flag=True, help="All states.")
@with_log()
async def delete(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, **options: Any) -> None:
    """Delete states."""
    seq_nr, max_seq_nr, everything = options["seq_nr"], options["max_seq_nr"], options["everything"]
    if [seq_nr is not None, max_seq_nr is not None, everything].count(True) != 1:
        raise click.UsageError("which states? Give one of --seq-nr, --max-seq-nr, --all")
    criteria = Criteria(max_seq_nr=MAX_SEQ_NR if max_seq_nr is None else max_seq_nr)
    count = await log.journal(topic).snapshots.delete(journal_id, seq_nr=seq_nr, criteria=criteria)
    document = {"topic": topic, "id": journal_id, "deleted": count}
    show(settings.as_json, document, f"deleted {count} state{'' if count == 1 else 's'} of {plain(journal_id)}")
