"""`everlog tags …`: list, read, follow, rebuild, verify, drop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import FAILED
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
from everlog.cli.settings import CliSettings, run_with_log, with_log
from everlog.errors import EverlogError
from everlog.tags.tag import Tag, TaggedEvent

# How often what goes on for long looks whether the pipeline still runs.
LOOK_BEHIND_S = 10.0

tag_argument = click.argument("tag")
after_option = click.option(
    "--after", metavar="OFFSET", help="Only what comes after this offset, or, with a token, once it is included."
)
since_option = click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"]),
    metavar="TIME",
    help="From this time on (UTC), such as 2030-01-31T12:00.",
)


@click.group(cls=Group)
def tags() -> None:
    """Read events by tag, over all journals, in one order that never changes.

    The pipeline writes these views: 'everlog up' or 'everlog replicate' must run for new events to appear.
    """


@tags.command(name="list", cls=CliCommand)
@with_log()
async def list_tags(log: Everlog, settings: CliSettings, /) -> None:
    """Print all tags, with the number of their events and journals and the last one's time."""
    found = await log.tags()
    await warn_behind(log.slices())
    if settings.as_json:
        for info in found:
            click.echo(encode(info))
        return
    if not found:
        click.echo("no tags yet", err=True)
    rows = [
        [f"{info.events:,}", f"{info.journals:,}", moment(round(info.last_time.timestamp() * 1000)), plain(info.tag)]
        for info in found
    ]
    TableRows("events", "journals", "last event (UTC)", "tag").add(rows)


async def warn_behind(tag: Tag) -> None:
    """Say on stderr that the views lack records of the log, by how much, and what to do."""
    warning = (await tag.status()).warning
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)


@asynccontextmanager
async def warnings_behind(tag: Tag) -> AsyncIterator[None]:
    """Look now and then whether the pipeline fills the views, and say on stderr each time that this changes."""
    logger = logging.getLogger("everlog.tags.behind")
    before = logger.level
    said: str | None = None

    async def watch() -> None:
        nonlocal said
        while True:
            await asyncio.sleep(LOOK_BEHIND_S)
            with suppress(EverlogError):  # the log does not answer now; the view may all the same
                said = await _say_behind(tag, said)

    watching = asyncio.create_task(watch())
    try:
        logger.setLevel(logging.ERROR)  # live readers log the same as a warning, once
        said = await _say_behind(tag, None)
        yield
    finally:
        logger.setLevel(before)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _say_behind(tag: Tag, said: str | None) -> str | None:
    """Say it if the reason is another one than was said before; the numbers change all the time."""
    status = await tag.status()
    found = None if status.warning is None else status.remedy or "late"
    if found != said:
        text = "the views by tag are up to date again" if found is None else f"warning: {status.warning}"
        click.echo(text, err=True)
    return found


class Printer:
    """Prints pages of events as they come."""

    def __init__(self, settings: CliSettings) -> None:
        self._as_json = settings.as_json
        self._table = TableRows("offset", "time (UTC)", "topic", "id", "seqNr", "type", "payload")

    def add(self, page: list[TaggedEvent]) -> None:
        if self._as_json:
            click.echo("\n".join(encode(document(event)) for event in page))
        else:
            self._table.add([_row(event) for event in page])
        sys.stdout.flush()


def document(event: TaggedEvent) -> dict[str, Any]:
    """A tagged event as a JSON line."""
    return {
        "offset": str(event.place),
        "number": event.number,
        **event_document(event.topic, event.id, event.event),
    }


def _row(event: TaggedEvent) -> list[str]:
    found = event.event
    return [
        str(event.place),
        moment(found.timestamp),
        event.topic,
        plain(event.id),
        str(found.seq_nr),
        type_text(found),
        payload_text(found.payload_type, found.data),
    ]


@tags.command(
    cls=CliCommand,
    examples=["everlog tags read eu", "everlog tags read eu --since 2030-01-31 --limit 10 --json"],
)
@tag_argument
@after_option
@since_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N events.")
@with_log()
async def read(
    log: Everlog, settings: CliSettings, /, tag: str, after: str | None, since: datetime | None, limit: int | None
) -> None:
    """Print the events of a tag that the view holds now."""
    await warn_behind(log.tag(tag))
    printer, left = Printer(settings), limit
    async for page in log.tag(tag).current_pages(after=after, since=_utc(since)):
        printer.add(page if left is None else page[:left])
        if left is not None:
            left -= len(page)
            if left <= 0:
                return


@tags.command(cls=CliCommand, examples=["everlog tags follow eu", "everlog tags follow eu --json | jq .payload"])
@tag_argument
@after_option
@since_option
def follow(tag: str, after: str | None, since: datetime | None) -> None:
    """Print the events of a tag, and go on as new ones come, until Ctrl-C."""

    async def run(log: Everlog, settings: CliSettings) -> None:
        printer = Printer(settings)
        async with warnings_behind(log.tag(tag)):
            async for page in log.tag(tag).live_pages(after=after, since=_utc(since)):
                printer.add(page)

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        run_with_log(run)


@tags.command(cls=CliCommand, examples=["everlog tags rebuild", "everlog tags rebuild --tag eu --topic orders"])
@click.option("--tag", "names", multiple=True, metavar="TAG", help="Only this tag; may be repeated.  [all]")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.  [all]")
@click.pass_context
def rebuild(context: click.Context, names: tuple[str, ...], topics: tuple[str, ...]) -> None:
    """Put back what the views lack, from the journals' own rows: a Spark job.

    Safe while the pipeline runs, and safe to repeat: what is there already stays as it is.
    """
    import everlog.spark.session  # noqa: F401 - says what to install, if anything
    from everlog.tags.spark.rebuild import rebuild as run

    settings = context.ensure_object(CliSettings)
    with progress_bar("journals") as progress:
        done = run(settings.open().config, tags=names or None, topics=topics or None, progress=progress)
    text = f"looked at {done.journals:,} journals, put back {done.rows:,} rows"
    show(settings.as_json, {"journals": done.journals, "rows": done.rows}, text)


@tags.command(cls=CliCommand)
@tag_argument
@with_log()
async def verify(log: Everlog, settings: CliSettings, /, tag: str) -> None:
    """Count a tag's events again in the journals, and print the first difference."""
    await warn_behind(log.tag(tag))
    report = await log.tag(tag).verify()
    text = f"{report.events:,} events of {report.journals:,} journals are in the view as they should be"
    show(settings.as_json, msgspec.to_builtins(report), text if report.right else f"difference: {report.difference}")
    if not report.right:
        sys.exit(FAILED)


@tags.command(cls=CliCommand, examples=["everlog tags drop eu", "everlog tags drop eu --topic orders --id order-1"])
@tag_argument
@click.option("--topic", metavar="TOPIC", help="Only events of this topic.")
@click.option("--id", "journal_id", metavar="ID", help="Only events of this journal.")
@with_log()
async def drop(log: Everlog, settings: CliSettings, /, tag: str, topic: str | None, journal_id: str | None) -> None:
    """Remove a view, or a journal's events from it.

    The events themselves stay in their journals; 'everlog tags rebuild' puts them back into the view.
    """
    count = await log.tag(tag).drop(topic=topic, journal_id=journal_id)
    show(settings.as_json, {"tag": tag, "rows": count}, f"removed {count:,} rows of {plain(tag)}")


def _utc(moment_: datetime | None) -> datetime | None:
    return None if moment_ is None else moment_.replace(tzinfo=UTC)
