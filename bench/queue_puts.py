"""Puts of jobs: one by one beside a bare commit of SQLite, a thousand in one call beside PgQueuer."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from bench.own_queue import DATA, PER_CALL, OwnQueue
from bench.queue_peers import Dramatiq, PgQueuer, Procrastinate
from bench.report import Line, Target, line_of, relate
from bench.rounds import Contender, Round, alternate, ratio
from bench.settings import Settings

MEASUREMENT = "queues: put"
UNIT = "jobs/s"
FULL = "FULL"
ON = "synchronous_commit on"
WEAKER = "appendfsync everysec: weaker"
OF_A_COMMIT = 0.7
TIMES_PGQUEUER = 1.5
# A wait for the disk takes now 1 ms, now 5: many short turns tell more than a few long ones.
SHORT_TURNS = 4
CLAIM = 100


class BareFile:
    """SQLite alone: a key and the data of a job as one row of a table without an index, a commit for each."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, key BLOB, data BLOB)")

    def close(self) -> None:
        self._connection.close()

    def one_by_one(self, jobs: int) -> Round:
        clock, latencies, data = time.perf_counter, [], DATA.encode()
        started = clock()
        for number in range(jobs):
            before = clock()
            self._connection.execute("INSERT INTO row (key, data) VALUES (?, ?)", (number.to_bytes(9), data))
            latencies.append(clock() - before)
        done = Round(jobs, clock() - started, latencies)
        self._connection.execute("DELETE FROM row")
        return done


def puts(
    settings: Settings, own: OwnQueue, procrastinate: Procrastinate, pgqueuer: PgQueuer, dramatiq: Dramatiq
) -> list[Line]:
    """Every round ends with an empty queue, outside its time."""
    few, many, some = settings.queue_single_jobs, settings.queue_jobs, settings.queue_redis_jobs
    slow = settings.queue_slow_jobs
    with closing(BareFile(settings.folder)) as bare:
        alone = [
            Contender(f"Everlog, one by one ({FULL})", _drained(own, few, own.one_by_one)),
            Contender(f"a bare SQLite commit of the same bytes ({FULL})", partial(bare.one_by_one, few)),
            Contender(f"PgQueuer, one by one ({ON})", partial(pgqueuer.one_by_one, few)),
            Contender(f"procrastinate, one by one ({ON})", partial(procrastinate.one_by_one, few)),
            Contender("Dramatiq, one by one (appendfsync always)", partial(dramatiq.one_by_one, few, "always")),
            Contender(f"Dramatiq, one by one ({WEAKER})", partial(dramatiq.one_by_one, few, "everysec")),
        ]
        alternate(alone, settings.rounds * SHORT_TURNS)
    in_one_call = f"{PER_CALL:,} in one call"
    together = [
        Contender(f"Everlog, {in_one_call} ({FULL})", _drained(own, many, own.together)),
        Contender(f"PgQueuer, {in_one_call} ({ON})", partial(pgqueuer.together, some)),
        Contender(f"procrastinate, {in_one_call} ({ON})", partial(procrastinate.together, slow)),
    ]
    alternate(together, settings.rounds)
    return [*_judged(alone, OF_A_COMMIT), *_judged(together, TIMES_PGQUEUER)]


def _drained(own: OwnQueue, jobs: int, put: Callable[[int], Round]) -> Callable[[], Round]:
    def run() -> Round:
        done = put(jobs)
        own.drain(jobs, CLAIM)
        return done

    return run


def _judged(contenders: list[Contender], wanted: float) -> list[Line]:
    """Everlog comes first, then what it is held to."""
    lines = [line_of(MEASUREMENT, one, UNIT) for one in contenders]
    relate(lines[0], lines[1:])
    name = f"{MEASUREMENT}, {contenders[0].name}, times {contenders[1].name}"
    lines[1].ratio = ratio(contenders[0], contenders[1])
    lines[0].target = Target(name, lines[1].ratio, wanted, "at least", "x")
    return lines
