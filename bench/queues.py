"""Work queues: no-op jobs put and drained through the real worker, beside procrastinate, PgQueuer and Dramatiq."""

from __future__ import annotations

import random
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import everlog
from bench.embedded import Embedded
from bench.own_queue import PER_CALL, OwnQueue
from bench.queue_peers import Dramatiq, PgQueuer, Procrastinate
from bench.report import Line, Target, line_of, milliseconds, relate
from bench.rounds import Contender, Round, alternate
from bench.servers import postgres, redis
from bench.settings import Settings
from everlog.queues.job import Job

FULL = "FULL"
ON = "synchronous_commit on"
WEAKER = "appendfsync everysec: weaker"
BATCHED = 2
UNBATCHED = 5


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
    with (
        postgres(settings.folder) as database,
        redis(settings.folder) as memory,
        Procrastinate(database) as procrastinate,
        PgQueuer(database) as pgqueuer,
        closing(Dramatiq(memory)) as dramatiq,
    ):
        own = OwnQueue(side)
        pairs = [*_own(settings, own), *_others(settings, procrastinate, pgqueuer, dramatiq)]
        alternate([one for pair in pairs for one in pair], settings.rounds)
        servers = f"{database.about}, Redis {memory.version}"
    lines = []
    for what, contenders in zip(("put", "drain"), zip(*pairs, strict=True), strict=True):
        lines += _judge([line_of(f"queues: {what}", one, "jobs/s", servers=servers) for one in contenders])
    return lines


# Who puts, and who drains what was put.
Pair = tuple[Contender, Contender]


def _own(settings: Settings, own: OwnQueue) -> list[Pair]:
    few, many, at_once = settings.queue_single_jobs, settings.queue_jobs, settings.queue_concurrency
    return [
        (
            Contender(f"Everlog, one by one ({FULL})", partial(own.one_by_one, few)),
            Contender(f"Everlog, one at a time ({FULL})", partial(own.drain, few, 1)),
        ),
        (
            Contender(f"Everlog, {PER_CALL:,} in one go ({FULL})", partial(own.together, many)),
            Contender(f"Everlog, {at_once} at a time ({FULL})", partial(own.drain, many, at_once)),
        ),
    ]


def _others(settings: Settings, procrastinate: Procrastinate, pgqueuer: PgQueuer, dramatiq: Dramatiq) -> list[Pair]:
    """procrastinate's first pair is the one to which Everlog's first is held."""
    few, slow, some = settings.queue_single_jobs, settings.queue_slow_jobs, settings.queue_redis_jobs
    in_one_call = f"{PER_CALL:,} in one call ({ON})"
    pairs = [
        (
            Contender(f"procrastinate, one by one ({ON})", partial(procrastinate.one_by_one, slow)),
            Contender(f"procrastinate, one at a time ({ON})", partial(procrastinate.drain, slow, 1)),
        ),
        (
            Contender(f"procrastinate, {in_one_call}", partial(procrastinate.together, slow)),
            Contender(f"procrastinate, 10 at a time ({ON})", partial(procrastinate.drain, slow, 10)),
        ),
        (
            Contender(f"PgQueuer, one by one ({ON})", partial(pgqueuer.one_by_one, few)),
            Contender(f"PgQueuer, batches of 10 ({ON})", partial(pgqueuer.drain, few, 10)),
        ),
        (
            Contender(f"PgQueuer, {in_one_call}", partial(pgqueuer.together, some)),
            Contender(f"PgQueuer, batches of 100 ({ON})", partial(pgqueuer.drain, some, 100)),
        ),
    ]
    for sync, how in (("always", "appendfsync always"), ("everysec", WEAKER)):
        pairs.append(
            (
                Contender(f"Dramatiq, one by one ({how})", partial(dramatiq.one_by_one, some, sync)),
                Contender(f"Dramatiq, 8 threads per process ({how})", partial(dramatiq.drain, some, sync)),
            )
        )
    return pairs


def _judge(lines: list[Line]) -> list[Line]:
    """One by one against procrastinate, batched against the fastest of the others with the same durability."""
    single, batched, procrastinate, *_ = lines
    others = lines[2:]
    relate(batched, others)
    fastest = max((line for line in others if WEAKER not in line.who), key=lambda line: line.rate or 0)
    _aim(single, procrastinate, UNBATCHED)
    _aim(batched, fastest, BATCHED)
    return lines


def _aim(own: Line, other: Line, times: float) -> None:
    assert own.rate is not None
    assert other.rate is not None
    name = f"{own.measurement}, {own.who}, times {other.who}"
    own.target = Target(name, own.rate / other.rate, times, "at least", "x")


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
