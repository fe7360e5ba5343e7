"""Work queues: jobs put and drained through the real worker, beside procrastinate, PgQueuer and Dramatiq."""

from __future__ import annotations

import random
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import everlog
from bench.embedded import Embedded
from bench.own_queue import OwnQueue
from bench.queue_drains import Drainer, drains
from bench.queue_peers import Dramatiq, PgQueuer, Procrastinate
from bench.queue_puts import FULL, ON, puts
from bench.report import Line, Target, line_of, milliseconds
from bench.rounds import Contender, Round, alternate
from bench.servers import postgres, redis
from bench.settings import Settings
from everlog.queues.job import Job


def queues(settings: Settings) -> list[Line]:
    """Beside the others, then what only Everlog does."""
    with Embedded(settings.folder / "queues") as side:
        if side.log.config.queue.synchronous != FULL:
            raise RuntimeError("Everlog's queues are not FULL: the comparison would not be fair")
        lines = _compared(settings, side)
        lines += _merging(settings, side)
        lines += _delayed(settings, side)
        lines += _waking(settings, side)
    return lines


def _compared(settings: Settings, side: Embedded) -> list[Line]:
    """Who runs one at a time does about as many jobs in a second as the last number says: so many are put."""
    with (
        postgres(settings.folder) as database,
        redis(settings.folder) as memory,
        Procrastinate(database) as procrastinate,
        PgQueuer(database) as pgqueuer,
        closing(Dramatiq(memory)) as dramatiq,
    ):
        own = OwnQueue(side)
        lines = puts(settings, own, procrastinate, pgqueuer, dramatiq)
        drainers = [
            Drainer(f"Everlog ({FULL})", own, 20_000, 1_000),
            Drainer(f"PgQueuer ({ON})", pgqueuer, 5_000, 500),
            Drainer("Dramatiq (appendfsync always)", dramatiq, 3_000, 1_000),
            Drainer(f"procrastinate ({ON})", procrastinate, 400, 300),
        ]
        lines += drains(settings, drainers)
        servers = f"{database.about}, Redis {memory.version}"
    for line in lines:
        line.details["servers"] = servers
    return lines


def _merging(settings: Settings, side: Embedded) -> list[Line]:
    """A put that finds its key waiting, against one that does not."""
    queue = OwnQueue(side, "merging")
    inserts, merges = Contender("Everlog: new keys", _never), Contender("Everlog: keys that wait already", _never)
    for number in range(settings.rounds + 1):
        inserted, merged = queue.merge(settings.queue_jobs)
        if number:
            inserts.rounds.append(inserted)
            merges.rounds.append(merged)
    first, second = (line_of("queues: merge", one, "puts/s") for one in (inserts, merges))
    share = merges.rate / inserts.rate
    second.target = Target("queues: merges, as a share of inserts", share, 0.7, "at least", "x")
    return [first, second]


def _never() -> Round:
    raise AssertionError("both rounds are made at once")


def _delayed(settings: Settings, side: Embedded) -> list[Line]:
    """Claims from a queue that holds what is due and nothing else, and from one with a heap of delayed jobs."""
    alone, crowded = OwnQueue(side, "alone"), OwnQueue(side, "crowded")
    crowded.together(settings.queue_delayed, timedelta(days=1))
    claims = settings.queue_claims
    contenders = [
        Contender("Everlog: claim of 10, nothing else waits", partial(alone.claims, claims, 10)),
        Contender(
            f"Everlog: claim of 10, {settings.queue_delayed:,} delayed jobs", partial(crowded.claims, claims, 10)
        ),
    ]
    alternate(contenders, settings.rounds)
    before, after = (line_of("queues: delayed", one, "claims/s") for one in contenders)
    assert before.rate is not None
    assert after.rate is not None
    name = "queues: a claim among delayed jobs, as a multiple of one without"
    after.target = Target(name, before.rate / after.rate, 2, "under", "x")
    return [before, after]


def _waking(settings: Settings, side: Embedded) -> list[Line]:
    late = side.run(_wake(settings, side))
    times = milliseconds(late)
    target = Target("queues: started after due, p99", times["p99"], 20, "under", " ms")
    return [Line("queues: due", "Everlog: due → started", milliseconds=times, target=target)]


async def _wake(settings: Settings, side: Embedded) -> list[float]:
    """Jobs due one after another, not in step with anything; the worker has nothing else to do."""
    late: list[float] = []
    source = random.Random(settings.seed)
    wanted = settings.latency_warm_up_samples + settings.queue_wakes

    async def note(job: Job) -> None:
        late.append(time.time() - job.due.timestamp())
        if len(late) == wanted:
            worker.stop()

    worker = side.log.worker(everlog.job("due")(note))
    queue, due = side.log.queue("due"), datetime.now(UTC) + timedelta(seconds=5)
    for number in range(wanted):
        due += timedelta(milliseconds=source.uniform(10, 60))
        await queue.put(number, at=due)
    await worker.run()
    return late[settings.latency_warm_up_samples :]
