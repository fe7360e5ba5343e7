"""`everlog expire`: purge journals whose time is over."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.exit_codes import FAILED
from everlog.cli.output import show
from everlog.cli.settings import CliSettings, with_log


@click.command(cls=CliCommand, examples=["everlog expire", "everlog expire --day 2030-01-31 --topic carts"])
@click.option(
    "--day", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD", help="As if it were this day.  [today, UTC]"
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")
@with_log()
async def expire(log: Everlog, settings: CliSettings, /, day: datetime | None, topics: tuple[str, ...]) -> None:
    """Purge the journals whose day has come.

    A journal expires when its last append said so (--expire-after). 'everlog up' does this by itself every hour.
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
