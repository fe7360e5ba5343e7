"""A process of its own that works on a queue: python -m tests.models.queue_process FOLDER MODE [ARGUMENT]

It writes what it learns to standard output, a JSON line each, after it was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import everlog
from everlog.queues.operations import AskSchedules
from everlog.queues.queue import Queue


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def drain(queue: Queue, batch: int) -> None:
    """Claim and finish until nothing is left."""
    while jobs := await queue.claim(batch, owner=str(id(queue))):
        say("leases", *[[job.entry, job.token] for job in jobs])
        await asyncio.gather(*(job.done() for job in jobs))


async def hold(queue: Queue, count: int) -> None:
    """Take so many leases and keep them for ever."""
    jobs = await queue.claim(count)
    say("leases", *[[job.entry, job.token] for job in jobs])
    await asyncio.Event().wait()


async def churn(queue: Queue, seed: int) -> None:
    """Put, claim, finish, for ever; `put` and `done` are said when they were acknowledged."""
    for number in range(1_000_000):
        key = f"k{seed}-{number}"
        say("putting", key)
        await queue.put(key, number)
        say("put", key)
        if number % 2:
            for job in await queue.claim(2, owner=str(seed)):
                say("claimed", job.key, job.entry, job.token)
                await job.done()
                say("done", job.key)


async def limited_groups(queue: Queue, count: int) -> None:
    await limited(queue, count, grouped=True)


async def limited(queue: Queue, count: int, *, grouped: bool = False) -> None:
    """Five workers that hold each job for a moment and say when it began and ended; `grouped`: and its group."""

    async def work(number: int) -> None:
        while True:
            jobs = await queue.claim(owner=f"w{number}")
            for job in jobs:
                began = job.row.start_ms
                await asyncio.sleep(0.02)
                ended = int(time.time() * 1000)  # as `began` is: whole milliseconds
                await job.done()
                say("ran", *([job.group] if grouped else []), began, ended)
            if not jobs:
                stats = await queue.stats()
                if stats.ready + stats.delayed + stats.running == 0:
                    return
                await asyncio.sleep(0.01)

    await asyncio.gather(*(work(number) for number in range(count)))


async def fire(queue: Queue, count: int) -> None:
    """Fire the queue's schedules until so many jobs are there; says how many times were put, each time some were."""
    while (await queue.stats()).ready < count:
        if await queue.store.execute(queue.name, AskSchedules()) == 0:
            say("fired", await queue.schedules.fire())
        await asyncio.sleep(0.001)


MODES = {
    "drain": drain,
    "hold": hold,
    "churn": churn,
    "limited": limited,
    "limited_groups": limited_groups,
    "fire": fire,
}


async def main(folder: str, mode: str, argument: str) -> None:
    async with everlog.connect(folder) as log:
        say("ready")
        sys.stdin.readline()
        await MODES[mode](log.queue("jobs"), int(argument))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
