"""`everlog status`: how far the tables are behind the log, once or live."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.exit_codes import INTERRUPTED
from everlog.cli.output import encode, moment, plain
from everlog.cli.settings import CliSettings, with_log
from everlog.errors import StorageFailed
from everlog.pipeline.status import PartitionStatus, PipelineStatus, Status
from everlog.runtime.supervisor import LoopStatus

LIVE_S = 0.5
PLAIN_S = 3.0
PATIENCE_S = 15.0
SHOWN_TOPICS = 3
SHOWN_MS = 0.5
SILENT_S = 10.0


@click.command(cls=CliCommand, examples=["everlog status --watch", "everlog status --json | jq .lag"])
@click.option("--watch", is_flag=True, help="Keep showing it until Ctrl-C.")
@click.option("-v", "--verbose", is_flag=True, help="Every partition, not only every topic; the slowest journals.")
@with_log()
async def status(log: Everlog, settings: CliSettings, /, watch: bool, verbose: bool) -> None:
    """Show how far the tables are behind the log.

    Lag is measured now, so it is right even while no pipeline runs; all else is what the pipeline reported last.
    """
    if not watch:
        show_once(await log.status(), settings, verbose=verbose)
        return
    with stop_signals() as stop:
        await watch_status(log, settings, stop, verbose=verbose)


def show_once(found: Status, settings: CliSettings, *, verbose: bool = False) -> None:
    """Print a status."""
    if settings.as_json:
        click.echo(encode(document(found)))
    else:
        Console().print(render(found, verbose=verbose))


def document(found: Status) -> dict[str, Any]:
    """The status as JSON, with the lag of each topic and of each partition."""
    known: dict[str, Any] = msgspec.to_builtins(found)
    known["topics"] = [
        dict(zip(("topic", "records", "replicated", "lag", "lag_seconds"), row, strict=True))
        for row in topic_rows(found)
    ]
    return known


def topic_rows(found: Status) -> list[tuple[str, int, int, int, float | None]]:
    """Per topic: records ever written, replicated, lag, age of the oldest that is not."""
    by_topic: dict[str, list[PartitionStatus]] = {}
    for partition in found.partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    rows = []
    for topic, partitions in sorted(by_topic.items()):
        ages = [one.lag_seconds for one in partitions if one.lag]
        age = None if None in ages else max((age for age in ages if age is not None), default=0.0)
        done = sum(min(one.pointer + 1, one.end) for one in partitions)
        rows.append((topic, sum(one.end for one in partitions), done, sum(one.lag for one in partitions), age))
    return rows


def render(found: Status, *, verbose: bool = False) -> RenderableType:
    """The status for people."""
    parts: list[RenderableType] = [_table(found, verbose=verbose), *pipeline_lines(found, verbose=verbose)]
    return Group(*parts)


def _table(found: Status, *, verbose: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("topic")
    if verbose:
        table.add_column("partition", justify="right")
    for title in ("records", "replicated", "lag", "behind"):
        table.add_column(title, justify="right")
    for topic, records, done, lag, age in topic_rows(found):
        table.add_row(*_cells(topic, "all" if verbose else None, records, done, lag, age))
        for one in found.partitions if verbose else ():
            if one.topic == topic:
                replicated = min(one.pointer + 1, one.end)
                table.add_row(*_cells("", str(one.partition), one.end, replicated, one.lag, one.lag_seconds))
    if not found.partitions:
        table.add_row("no topics yet")
    return table


def _cells(
    topic: str, partition: str | None, records: int, done: int, lag: int, age: float | None
) -> Iterator[RenderableType]:
    yield Text(topic)
    if partition is not None:
        yield Text(partition, style="dim")
    yield f"{records:,}"
    yield f"{done:,}"
    yield Text(f"{lag:,}", style="yellow" if lag else "green")
    yield "?" if age is None else "-" if not lag else f"{age:,.1f} s"


def pipeline_lines(found: Status, *, verbose: bool = False) -> list[Text]:
    """What the pipeline and the other services report."""
    pipeline = found.pipeline
    if pipeline is None:
        lines = [Text("pipeline  never ran here: start it with 'everlog up' or 'everlog replicate'", style="yellow")]
    else:
        lines = _pipeline(pipeline, verbose=verbose)
    lines += [_service(name, last) for name, last in sorted(found.services.items()) if isinstance(last, dict)]
    lines += [_loop(one) for one in found.loops]
    lines += [_node(node, found.time_ms) for node in found.nodes]
    lines += [Text(f"retired   {topic}: it can be read, not written to", style="dim") for topic in found.retired]
    lines += _concerns(found)
    if found.quarantined:
        text = f"waiting   {_count(found.quarantined, 'record')} in quarantine: see 'everlog quarantine list'"
        lines.append(Text(text, style="red"))
    return lines


def _concerns(found: Status) -> list[Text]:
    """What many topics have in common is said once."""
    topics: dict[str, list[str]] = {}
    for topic, reasons in sorted(found.concerns.items()):
        for reason in reasons:
            topics.setdefault(reason, []).append(topic)
    lines = []
    for reason, names in topics.items():
        more = f" and {len(names) - SHOWN_TOPICS:,} more" if len(names) > SHOWN_TOPICS else ""
        lines.append(Text(f"unsafe    {', '.join(names[:SHOWN_TOPICS])}{more}: {reason}", style="yellow"))
    return lines


def _service(name: str, last: dict[str, Any]) -> Text:
    """What a service reported last, or a start that accepted a loss."""
    if name.startswith("loss "):
        place = f"{last.get('topic')}, partition {last.get('partition')}"
        return Text(f"lost      {place}: offsets {last.get('from')} to {last.get('to')}", style="yellow")
    if last.get("last_error"):
        return Text(f"service   {name} failed: {plain(str(last['last_error']))}", style="red")
    return Text(f"service   {name}: {plain(str(last.get('last_result') or 'nothing yet'))}")


def _loop(one: LoopStatus) -> Text:
    """A loop of the process that answers; the last error stays after it has recovered."""
    again = f", {_count(one.restarts, 'restart')}" if one.restarts else ""
    error = f": {plain(one.last_error)}" if one.last_error else ""
    style = "red" if one.state == "restarting" else "yellow" if one.last_error else ""
    return Text(f"loop      {plain(one.name)} {one.state}{again}{error}", style=style)


def _node(node: dict[str, Any], now_ms: int) -> Text:
    """A server that shares the documents; one that has not reported for long is dead, and its row is removed soon."""
    silent = (now_ms - node["seen_ms"]) / 1000
    late = f", silent for {silent:,.0f} s" if silent > SILENT_S else ""
    style = "yellow" if late or node["state"] != "active" else ""
    return Text(f"node      {plain(node['address'])} {node['state']}{late}", style=style)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _cycles(pipeline: PipelineStatus, *, verbose: bool) -> Iterator[Text]:
    """Where the time of the last cycles went, what was written, and, if asked for, the slowest journals."""
    spent = sorted(pipeline.recent_phases.items(), key=lambda phase: -phase[1])
    if phases := [f"{phase} {ms:,.0f} ms" for phase, ms in spent if ms >= SHOWN_MS]:
        yield Text(f"time      {', '.join(phases)} (mean of {_count(len(pipeline.recent), 'cycle', 'cycles')})")
    if rows := [f"{table} {count:,}" for table, count in pipeline.rows.items() if count]:
        yield Text(f"rows      {', '.join(rows)}")
    for key in pipeline.slowest if verbose else ():
        size = f"{_count(key.records, 'record')}, {_count(key.events, 'event')}"
        yield Text(f"slow      {plain(key.topic)} {plain(key.id)}: {key.ms:,.1f} ms, {size}")


def _pipeline(pipeline: PipelineStatus, *, verbose: bool) -> list[Text]:
    good = pipeline.state in ("running", "starting", "stopped")
    where = f"process {pipeline.pid} on {pipeline.host}"
    heard = f", last heard of at {moment(pipeline.updated_ms)} UTC" if pipeline.state == "lost" else ""
    lines = [Text.assemble("pipeline  ", (pipeline.state, "green" if good else "red"), f", {where}{heard}")]
    if pipeline.cycles:
        lines += [
            Text(
                f"          {_count(pipeline.records, 'record')} in {_count(pipeline.cycles, 'cycle', 'cycles')}"
                f" ({pipeline.records_per_second:,.0f}/s): {_count(pipeline.events, 'event')},"
                f" {pipeline.rejected:,} rejected ({pipeline.rejected_by_life:,} by life),"
                f" {pipeline.quarantined:,} quarantined"
            ),
            Text(
                f"          last cycle {_count(pipeline.last_cycle_records, 'record')}"
                f" in {pipeline.last_cycle_ms:,.0f} ms, median {pipeline.cycle_ms_p50:,.0f} ms"
            ),
            *_cycles(pipeline, verbose=verbose),
        ]
    lines += [Text(f"left out  {topic}: {plain(reason)}", style="red") for topic, reason in pipeline.left_out.items()]
    if pipeline.tags_wait_for and pipeline.left_out:
        lines.append(Text(f"views by tag wait for {', '.join(pipeline.tags_wait_for)}", style="red"))
    if pipeline.last_error:
        when = "" if pipeline.last_error_ms is None else f"{moment(pipeline.last_error_ms)} UTC: "
        lines.append(Text(f"error     {when}{plain(pipeline.last_error)}", style="red" if not good else "yellow"))
    return lines


def plain_line(found: Status) -> str:
    """The status on one line, for a log file."""
    records = sum(one.end for one in found.partitions)
    behind = f" ({found.lag_seconds:,.1f} s)" if found.lag and found.lag_seconds is not None else ""
    parts = [f"{records:,} records in", f"{records - found.lag:,} replicated", f"lag {found.lag:,}{behind}"]
    pipeline = found.pipeline
    if pipeline is not None:
        parts += [f"{pipeline.records_per_second:,.0f}/s", pipeline.state]
        if pipeline.last_error and pipeline.state in ("retrying", "lost"):
            parts.append(f"error: {plain(pipeline.last_error)}")
    if found.quarantined:
        parts.append(f"{found.quarantined:,} in quarantine")
    return ", ".join(parts)


@contextmanager
def stop_signals(message: str = "") -> Iterator[asyncio.Event]:
    """An event that Ctrl-C and SIGTERM set; the second time they end the program at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def on_signal() -> None:
        if stop.is_set():
            Console().show_cursor()
            os._exit(INTERRUPTED)  # threads that wait for Spark would keep a proper end waiting too
        stop.set()
        if message:
            print(message, file=sys.stderr)  # a live display stands in for it and makes room

    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


async def _statuses(log: Everlog, stop: asyncio.Event, every: float) -> AsyncIterator[Status | str]:
    """The status now and every `every` seconds, the last time when `stop` is set; or why there is none."""
    while True:
        over = stop.is_set()
        try:
            yield await asyncio.wait_for(log.status(), PATIENCE_S)
        except StorageFailed as error:
            yield str(error)  # servers come back, and the pipeline waits for them
        except TimeoutError:
            yield f"no answer in {PATIENCE_S:g} s"
        if over:
            return
        try:
            async with asyncio.timeout(every):
                await stop.wait()
        except TimeoutError:
            continue


async def watch_status(log: Everlog, settings: CliSettings, stop: asyncio.Event, *, verbose: bool = False) -> None:
    """Show what flows until `stop`: live on a terminal, else a line whenever something changed."""
    console = Console()
    if settings.as_json:
        async for found in _statuses(log, stop, PLAIN_S):
            click.echo(encode({"error": found} if isinstance(found, str) else document(found)))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            async for found in _statuses(log, stop, LIVE_S):
                live.update(_unknown(found) if isinstance(found, str) else render(found, verbose=verbose), refresh=True)
    else:
        last = ""
        async for found in _statuses(log, stop, PLAIN_S):
            line = _unknown(found).plain if isinstance(found, str) else plain_line(found)
            if line != last:
                click.echo(line)
                last = line


def _unknown(reason: str) -> Text:
    return Text(f"no status  {plain(reason)}", style="red")
