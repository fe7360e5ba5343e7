"""`everlog journal …`: append, read, pointer, delete, purge, mark, keys, copy, retire; and `everlog expire`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.bulk import Summary, append_lines
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import CONFLICT, FAILED, HALTED, RETRY, exit_code
from everlog.cli.output import (
    TableRows,
    encode,
    event_document,
    moment,
    payload_text,
    plain,
    progress_bar,
    show,
    type_text,
)
from everlog.cli.payload import PayloadOptions, parse_expiry, parse_headers, parse_json, payload_options
from everlog.cli.settings import CliSettings, run_with_log, with_log
from everlog.core.events import Event, EventRecord
from everlog.core.head import exists
from everlog.core.values import MAX_SEQ_NR, Version
from everlog.errors import CopyRefused, JournalNotFound
from everlog.journal.journal import Journal, JournalExpiry

if TYPE_CHECKING:
    from everlog.journal.spark.copy_job import CopyReport

SHOWN_FAILURES = 20

topic_argument = click.argument("topic")
id_argument = click.argument("journal_id", metavar="ID")
after_option = click.option(
    "--after", metavar="TOKEN", help="Answer only if this position, printed by a write, is included."
)


@click.group(cls=Group)
def journal() -> None:
    """Append events to journals and read them back.

    A journal is named by its TOPIC and its ID. A topic begins with its first append.
    """


async def missing(log: Everlog, topic: str, journal_id: str) -> JournalNotFound:
    """The error for a journal that is not there; a mistyped topic is the likeliest reason."""
    topics = await log.topics()
    if topic not in topics:
        return JournalNotFound(f"there is no topic {topic!r}; there are: {', '.join(sorted(topics)) or 'none yet'}")
    return JournalNotFound(f"there is no journal {journal_id!r} in the topic {topic!r}")


@journal.command(
    cls=CliCommand,
    examples=[
        "everlog journal append orders order-1 --payload 'hello' --tag eu",
        "everlog journal append orders order-1 --json-payload '{\"total\": 12}' --expected 1",
        "everlog journal append orders order-1 --file invoice.pdf --expire-after '90 days'",
        "everlog journal append orders --lines events.jsonl",
    ],
)
@topic_argument
@click.argument("journal_id", metavar="[ID]", required=False)
@payload_options
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag of the event; may be repeated.")
@click.option("--expected", metavar="N", help="Append only if the journal is at seqNr N (0: absent), or at N@LIFE.")
@click.option("--seq-nr", type=int, metavar="N", help="The event's own seqNr; gaps are allowed.")
@click.option("--type", metavar="NAME", help="What kind of event it is: 'order-placed'.")
@click.option("--type-version", type=int, metavar="N", help="The version of its type.  [1]")
@click.option("--expire-after", metavar="DURATION", help="Purge the journal this long after the append: '1 day'.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--metadata", metavar="JSON", help="Stored with the event.")
@click.option("--append-id", metavar="ID", help="Repeat an append whose outcome is unknown, without doubling it.")
@click.option("--idempotency-key", metavar="KEY", help="With --expected: repeated with this key, it is stored once.")
@click.option("--lines", metavar="FILE", help="Append many: JSON lines from a file, or '-' for standard input.")
@click.option("--keep-going", is_flag=True, help="With --lines: go on after a bad line, report all at the end.")
def append(
    topic: str, journal_id: str | None, payload: PayloadOptions, lines: str | None, keep_going: bool, **options: Any
) -> None:
    """Append an event, or with --lines many.

    Prints the token of the append, for --after. A line of --lines is a JSON object: id, payload, payload_type (text,
    json, or binary for base64), tags, type, type_version, seq_nr, expected, expire_after, headers, metadata; only the
    id is needed. The order of lines with the same id is kept. 'everlog journal read --json' prints such lines.
    """
    if lines is not None:
        if journal_id is not None or payload.given or any(value not in (None, ()) for value in options.values()):
            raise click.UsageError("with --lines, everything about the events stands in the lines")
        _append_lines(topic, lines, keep_going=keep_going)
        return
    if journal_id is None:
        raise click.UsageError("which journal? Give its ID after the topic, or many events with --lines")
    if keep_going:
        raise click.UsageError("--keep-going goes with --lines")
    # All that can be wrong with the call is found before a folder is made for it.
    own = {name: options.pop(name) for name in ("tags", "seq_nr", "type", "type_version")}
    event = Event(payload.value(), **own)
    options["expected"] = None if options["expected"] is None else Version.parse(options["expected"])
    options["expire_after"] = parse_expiry(options["expire_after"])
    options["metadata"] = parse_json("--metadata", options["metadata"])
    options["headers"] = parse_headers(options["headers"])

    async def work(log: Everlog, settings: CliSettings) -> None:
        token = await log.journal(topic).append(journal_id, event, **options)
        place = {"seq_nr": token.range.last, "life": token.life}
        document = {"topic": topic, "id": journal_id, **place, "token": str(token)}
        show(settings.as_json, document, f"{plain(journal_id)} is at seqNr {token.range.last}, token {token}")

    run_with_log(work, create=True)


def _append_lines(topic: str, lines: str, *, keep_going: bool) -> None:
    if lines != "-" and not Path(lines).exists():
        raise click.UsageError(f"--lines: there is no file {lines!r}")

    async def work(log: Everlog, settings: CliSettings) -> None:
        show_summary(settings, topic, await append_lines(log.journal(topic), lines, keep_going=keep_going))

    run_with_log(work, create=True)


def show_summary(settings: CliSettings, topic: str, summary: Summary) -> None:
    """What a bulk append did; it fails if a line did."""
    if summary.failures and not settings.as_json:
        for failure in summary.failures[:SHOWN_FAILURES]:
            click.echo(f"line {failure.line}: {failure.cause}", err=True)
        if summary.failed > SHOWN_FAILURES:
            click.echo(f"and {summary.failed - SHOWN_FAILURES:,} more lines", err=True)
    rate = summary.appended / summary.seconds if summary.seconds else 0.0
    tokens = [str(summary.positions[partition]) for partition in sorted(summary.positions)]
    document = {
        "topic": topic,
        "appended": summary.appended,
        "failed": summary.failed,
        "seconds": round(summary.seconds, 3),
        "tokens": tokens,
        "failures": [{"line": failure.line, "error": str(failure.cause)} for failure in summary.failures],
    }
    text = f"appended {summary.appended:,} events to {topic} in {summary.seconds:.1f} s ({rate:,.0f}/s)"
    show(settings.as_json, document, text + (f", {summary.failed:,} lines failed" if summary.failed else ""))
    codes = {exit_code(failure) for failure in summary.failures}
    if codes:
        sys.exit(codes.pop() if len(codes) == 1 else FAILED)


@journal.command(
    cls=CliCommand,
    examples=[
        "everlog journal read orders order-1",
        "everlog journal read orders order-1 --reverse --limit 1 --json",
        "everlog journal read orders order-1 --json | everlog journal append copies --lines -",
    ],
)
@topic_argument
@id_argument
@click.option("--from", "from_seq", type=int, default=1, metavar="N", help="The first seqNr.  [1]")
@click.option("--to", "to_seq", type=int, default=MAX_SEQ_NR, metavar="N", help="The last seqNr.  [the end]")
@click.option("--limit", type=int, metavar="N", help="At most N events.")
@click.option("--reverse", is_flag=True, help="The newest first.")
@after_option
@with_log()
async def read(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, **options: Any) -> None:
    """Print a journal's events, replicated or not.

    They are printed as they are read; binary payloads as base64.
    """
    table, found = TableRows("seqNr", "time (UTC)", "tags", "type", "payload"), False
    async for page in log.journal(topic).read_pages(journal_id, **options):
        found = True
        if settings.as_json:
            click.echo("\n".join(encode(event_document(topic, journal_id, event)) for event in page))
        else:
            table.add([_row(event) for event in page])
    if not found:
        await _explain_nothing(log, topic, journal_id)


async def _explain_nothing(log: Everlog, topic: str, journal_id: str) -> None:
    """No events: is there no journal, or nothing in the range?"""
    head = await log.journal(topic).head(journal_id)
    if head is None or not exists(head):
        raise await missing(log, topic, journal_id)
    deleted = f", deleted up to {head.delete_to}" if head.delete_to else ""
    click.echo(f"no events here: the journal is at seqNr {head.seq_nr}{deleted}", err=True)


def _row(event: EventRecord) -> list[str]:
    return [
        str(event.seq_nr),
        moment(event.timestamp),
        plain(",".join(sorted(event.tags))) or "-",
        type_text(event),
        payload_text(event.payload_type, event.data),
    ]


@journal.command(cls=CliCommand)
@topic_argument
@id_argument
@after_option
@with_log()
async def pointer(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, after: str | None) -> None:
    """Print a journal's highest seqNr.

    With --json, also when it expires, and the life that it is in: 'append --expected SEQ_NR@LIFE' then fails after a
    purge, too.
    """
    found: Journal = log.journal(topic)
    version = await found.pointer(journal_id, after=after)
    if version is None:
        raise await missing(log, topic, journal_id)
    document: dict[str, Any] = {"topic": topic, "id": journal_id, "seq_nr": int(version), "life": version.life}
    if settings.as_json:
        document |= _expiry(await found.expiry(journal_id, after=after))
    show(settings.as_json, document, str(version))


def _expiry(found: JournalExpiry | None) -> dict[str, str | None]:
    """When a journal expires; one that was taken over may know the day only."""
    day, time = found or JournalExpiry()
    return {
        "expire_on": None if day is None else day.isoformat(),
        "expire_at": None if time is None else moment(time).replace(" ", "T") + "+00:00",
    }


@journal.command(cls=CliCommand, examples=["everlog journal delete orders order-1 --to 3"])
@topic_argument
@id_argument
@click.option("--to", type=int, metavar="N", help="The last seqNr to delete.  [all]")
@with_log()
async def delete(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, to: int | None) -> None:
    """Delete a journal's events up to a seqNr.

    The journal stays and goes on counting where it was; to end it, purge it.
    """
    token = await log.journal(topic).delete(journal_id, to=MAX_SEQ_NR if to is None else to)
    if token is None:
        raise await missing(log, topic, journal_id)
    _show_token(settings, topic, journal_id, token, "all events" if to is None else f"events up to {to}")


@journal.command(cls=CliCommand)
@topic_argument
@id_argument
@with_log()
async def purge(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str) -> None:
    """Remove a journal, its events and its snapshots.

    A later append begins a new one at seqNr 1.
    """
    found: Journal = log.journal(topic)
    head = await found.head(journal_id)
    if head is None or (head.purged and head.halted_at is None):
        raise await missing(log, topic, journal_id)
    _show_token(settings, topic, journal_id, await found.purge(journal_id), "purged")


@journal.command(cls=CliCommand)
@topic_argument
@id_argument
@click.argument("mark_id", required=False, metavar="[MARK]")
@with_log(create=True)
async def mark(log: Everlog, settings: CliSettings, /, topic: str, journal_id: str, mark_id: str | None) -> None:
    """Write a record that changes nothing, for programs that watch the log."""
    _show_token(settings, topic, journal_id, await log.journal(topic).mark(journal_id, mark_id), "marked")


def _show_token(settings: CliSettings, topic: str, journal_id: str, token: object, what: str) -> None:
    document = {"topic": topic, "id": journal_id, "token": str(token)}
    verb = what if what in ("purged", "marked") else f"deleted {what} of"
    show(settings.as_json, document, f"{verb} {plain(journal_id)}, token {token}")


@journal.command(cls=CliCommand)
@topic_argument
@with_log()
async def keys(log: Everlog, settings: CliSettings, /, topic: str) -> None:
    """Print the ids of all journals of a topic, one per line."""
    if topic not in (topics := await log.topics()):
        raise JournalNotFound(f"there is no topic {topic!r}; there are: {', '.join(sorted(topics)) or 'none yet'}")
    async for journal_id in log.journal(topic).keys():
        show(settings.as_json, {"topic": topic, "id": journal_id}, plain(journal_id))


@journal.command(
    cls=CliCommand, examples=["everlog journal copy orders orders2 --dry-run", "everlog journal copy orders orders2"]
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Only count what would be copied, and find what stands in the way.")
@click.pass_context
def copy(context: click.Context, source: str, target: str, dry_run: bool) -> None:
    """Copy all journals of a topic into another one, with their seqNrs: a Spark job.

    For a topic whose log was deleted, made again or truncated: what is in the tables is copied, and what the log still
    holds above them. Stop the writers of both topics first. Safe to repeat at any time: what is there already is
    compared, not doubled. A journal that another program writes to is left as it is, and named.
    """
    import everlog.spark.session  # noqa: F401 - says what to install, if anything
    from everlog.journal.spark.copy_job import copy as run

    settings = context.ensure_object(CliSettings)
    if (settings.data or "").startswith(("http://", "https://")):
        raise click.UsageError("a copy needs the log and the store themselves, not a server: --data FOLDER or --config")
    with progress_bar("journals") as progress:
        report = run(settings.open().config, source, target, dry_run=dry_run, progress=progress)
    _conclude(settings, source, target, report, dry_run=dry_run)


def _conclude(settings: CliSettings, source: str, target: str, report: CopyReport, *, dry_run: bool) -> None:
    """Say what was done; the exit code says whether all of it was."""
    document: dict[str, Any] = {"from": source, "to": target, "dry_run": dry_run, **msgspec.to_builtins(report)}
    verb = "would copy" if dry_run else "copied"
    there = f", {report.present:,} were there" if report.present else ""
    proof = "" if dry_run else ", compared and equal"
    text = f"{verb} {report.events:,} events{there}: {report.journals:,} journals of {source} are in {target}{proof}"
    if dry_run:
        text = f"{verb} {report.events:,} events of {report.journals:,} journals from {source} to {target}{there}"
    show(settings.as_json, document, text)
    if not settings.as_json:
        _complain(report)
    if report.failed:
        if all(failure.error == CopyRefused.__name__ for failure in report.failures):
            sys.exit(CONFLICT)
        sys.exit(RETRY if all(failure.retriable for failure in report.failures) else FAILED)
    if report.halted:
        sys.exit(HALTED)


def _complain(report: CopyReport) -> None:
    for partition, gap in sorted(report.gaps.items()):
        click.echo(f"partition {partition} of the log: {gap}", err=True)
    if report.halted:
        names = ", ".join(map(plain, report.halted_ids[:SHOWN_FAILURES]))
        click.echo(f"halted, so copied up to the record that halts them: {report.halted:,}: {names}", err=True)
    for failure in report.failures[:SHOWN_FAILURES]:
        click.echo(f"error: {plain(failure.reason)}", err=True)
    if report.failed > SHOWN_FAILURES:
        click.echo(f"and {report.failed - SHOWN_FAILURES:,} more", err=True)


@journal.command(
    cls=CliCommand, examples=["everlog journal retire orders", "everlog journal retire orders --force --json"]
)
@click.argument("topic")
@click.option("--force", is_flag=True, help="Also a topic whose log is sound, if all of it is in the tables.")
@with_log()
async def retire(log: Everlog, settings: CliSettings, /, topic: str, force: bool) -> None:
    """Retire a topic whose log is gone or was replaced, for good.

    The pipeline leaves it out, views by tag wait for it no longer, appends to it are refused. Its journals can still be
    read, and copied. There is no way back: to go on, copy its journals into a new topic.
    """
    found = await log.retire(topic, force=force)
    lost = f"; {found.unreplicated:,} records of its log are not in the tables" if found.unreplicated else ""
    text = f"{topic} is retired since {moment(found.since_ms)} UTC: it can be read and copied, not written to{lost}"
    show(settings.as_json, msgspec.to_builtins(found), text)


@click.command(cls=CliCommand, examples=["everlog expire", "everlog expire --day 2030-01-31 --topic carts"])
@click.option(
    "--day", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD", help="As if this day (UTC) were over.  [now]"
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")
@with_log()
async def expire(log: Everlog, settings: CliSettings, /, day: datetime | None, topics: tuple[str, ...]) -> None:
    """Purge the journals that have expired.

    A journal expires when its last append said so (--expire-after), and is never purged before that. 'everlog up' does
    this by itself every hour.
    """
    wanted = None if day is None else day.replace(tzinfo=UTC).date()
    report = await log.expire(day=wanted, topics=list(topics) or None)
    lines = [f"{topic}: {count:,} journals purged" for topic, count in report.purged.items()]
    lines += [f"{topic}: {count:,} old markers dropped" for topic, count in report.markers.items() if count]
    show(settings.as_json, msgspec.to_builtins(report), "\n".join(lines) or "there are no topics")
    if report.failed:
        for topic, reason in report.failed.items():
            click.echo(f"error: {topic}: {reason}", err=True)
        sys.exit(FAILED)
