"""`everlog work MODULE[:NAME]`: run the jobs of queues."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.output import show
from everlog.cli.settings import CliSettings, with_log
from everlog.errors import QueueNotFound
from everlog.queues.job_function import JobFunction, find_jobs
from everlog.queues.job_log import JobLog
from everlog.queues.worker import Worker
from everlog.runtime.supervisor import LoopSupervisor

logger = logging.getLogger("everlog.queues")


@click.command(
    cls=CliCommand,
    examples=["everlog work shop.jobs", "everlog work shop.jobs:app --concurrency 50 --middleware shop.tracing:around"],
)
@click.argument("target", metavar="MODULE[:NAME]")
@click.option("--concurrency", type=click.IntRange(1, 1000), metavar="N", help="Jobs at a time, for each queue.")
@click.option(
    "--middleware",
    multiple=True,
    metavar="MODULE:NAME",
    help="Call it around every job; given several times, the first one outermost.",
)
@click.option("--until-empty", is_flag=True, help="End when nothing is left to do now.")
@with_log(create=True, for_long=True)
async def work(
    log: Everlog,
    settings: CliSettings,
    /,
    target: str,
    concurrency: int | None,
    middleware: tuple[str, ...],
    until_empty: bool,
) -> None:
    """Run the functions that are marked with @everlog.job.

    MODULE is imported as Python does, also from this folder; NAME is one such function or a list of them; without
    it, all of the module. Ctrl-C or SIGTERM lets what runs finish for a while, then gives the rest back.
    """
    jobs = load_jobs(target)
    job_log = JobLog()
    around = [job_log, *map(load_name, middleware)]
    worker = log.worker(jobs, concurrency=concurrency, middleware=around)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    queues = list(dict.fromkeys(job.queue for job in jobs))
    show(settings.as_json, {"worker": worker.name, "queues": queues}, f"{worker.name} works on {', '.join(queues)}")
    sys.stdout.flush()
    loops = LoopSupervisor(clock=log.queues.clock, logger=logger)
    if until_empty:
        loops.start("the look for an end", partial(_stop_when_empty, log, worker, queues), may_end=True)
    try:
        await worker.run()
    finally:
        await loops.stop()
    counted = dict(worker.counted)
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counted.items())) or "nothing to do"
    kinds = msgspec.to_builtins(job_log.kinds)
    show(
        settings.as_json,
        {"worker": worker.name, **counted, "kinds": kinds},
        "\n".join([*map(str, job_log.kinds), summary]),
    )


def load_jobs(target: str) -> list[JobFunction]:
    """The job functions that MODULE[:NAME] stands for."""
    return find_jobs(load_name(target))


def load_name(target: str) -> Any:
    """What MODULE:NAME stands for; without a name, the module."""
    module_name, _, name = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise click.UsageError(f"{module_name!r} cannot be imported: {error}") from error
    for part in name.split(".") if name else ():
        if not hasattr(found, part):
            raise click.UsageError(f"{module_name!r} has no {name!r}")
        found = getattr(found, part)
    return found


async def _stop_when_empty(log: Everlog, worker: Worker, queues: list[str]) -> None:
    """Delayed jobs are not waited for."""
    while True:
        await asyncio.sleep(0.05)
        if not worker.ready:
            continue
        names = set(await log.queues.names())
        found = []
        for name in names.intersection(queues):
            with suppress(QueueNotFound):  # it was deleted meanwhile
                found.append(await log.queue(name).stats())
        if not any(stats.ready + stats.running for stats in found):
            worker.stop()
            return
