"""`everlog journal copy`, `retire`: what helps a topic whose log is gone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.exit_codes import CONFLICT, FAILED, HALTED, RETRY
from everlog.cli.output import moment, plain, show
from everlog.cli.settings import CliSettings, with_log
from everlog.errors import CopyRefused

if TYPE_CHECKING:
    from everlog.journal.spark.copy_job import CopyReport

SHOWN = 20


@click.command(
    cls=CliCommand, examples=["everlog journal copy orders orders2 --dry-run", "everlog journal copy orders orders2"]
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Only count what would be copied, and find what stands in the way.")
@click.pass_context
def copy(context: click.Context, source: str, target: str, dry_run: bool) -> None:
    """Copy all journals of a topic into another one, with their seqNrs: a Spark job.

    For a topic whose log was deleted, made again or truncated: what is in the tables is copied, and what the log still
    holds above them. Stop those who write to either topic first. To be repeated at any time: what is there already is
    compared, not doubled. A journal that somebody else writes to is left as it is, and named.
    """
    import everlog.spark.session  # noqa: F401 - says what to install, if anything
    from everlog.journal.spark.copy_job import copy as run

    settings = context.ensure_object(CliSettings)
    if (settings.data or "").startswith(("http://", "https://")):
        raise click.UsageError("a copy needs the log and the store themselves, not a server: --data FOLDER or --config")
    console = Console(stderr=True)
    columns = (TextColumn("journals"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)

        def told(done: int, known: int) -> None:
            progress.update(task, completed=done, total=known)

        report = run(settings.open().config, source, target, dry_run=dry_run, progress=told)
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
        names = ", ".join(map(plain, report.halted_ids[:SHOWN]))
        click.echo(f"halted, so copied up to the record that halts them: {report.halted:,}: {names}", err=True)
    for failure in report.failures[:SHOWN]:
        click.echo(f"error: {plain(failure.reason)}", err=True)
    if report.failed > SHOWN:
        click.echo(f"and {report.failed - SHOWN:,} more", err=True)


@click.command(
    cls=CliCommand, examples=["everlog journal retire orders", "everlog journal retire orders --force --json"]
)
@click.argument("topic")
@click.option("--force", is_flag=True, help="Also a topic whose log is sound, if all of it is in the tables.")
@with_log()
async def retire(log: Everlog, settings: CliSettings, /, topic: str, force: bool) -> None:
    """Retire a topic whose log is gone or another one, for good.

    The pipeline leaves it out, views by tag wait for it no longer, appends to it are refused. Its journals can still be
    read, and copied. There is no way back: to go on, copy its journals into a new topic.
    """
    found = await log.retire(topic, force=force)
    lost = f"; {found.unreplicated:,} records of its log are not in the tables" if found.unreplicated else ""
    text = f"{topic} is retired since {moment(found.since_ms)} UTC: it can be read and copied, not written to{lost}"
    show(settings.as_json, msgspec.to_builtins(found), text)


def add_to(group: click.Group) -> None:
    """These are commands of `everlog journal`."""
    for command in (copy, retire):
        group.add_command(command)
