"""The processes of a chaos run: producers, workers, hands and servers, on a folder, on a cluster, or over HTTP.

Each writes down what it asks of the queues and what it is told, for the checker in `queue_history`: a line before an
operation begins, another one when it has ended. So a process that is killed leaves operations whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import everlog
import everlog.remote.queues
from everlog.cli.status import stop_signals
from everlog.console.server import serving
from everlog.errors import EverlogError, LeaseLost
from everlog.queues import claim_order, rules, schedule, timetable
from everlog.queues.cassandra.own_thread import OwnThreadQueues
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.job import Job, JobInfo, NewJob
from everlog.queues.keys import decode_key
from everlog.queues.operations import (
    BeatAnswer,
    Cancel,
    Claim,
    Done,
    Fail,
    Heartbeat,
    JobLease,
    Operation,
    PauseSchedule,
    Put,
    PutAnswer,
    Release,
    SetSchedule,
)
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.rows import JobRow, Packet
from tests.pipeline.backends import read_config

logger = logging.getLogger(__name__)

LEASE_S = 1.0
MAX_JOB_S = 0.2
# A few jobs keep the loop of their worker busy for so long: their leases are kept all the same.
LONG_BLOCK_S = 1.5 * LEASE_S
PAGES, MAILS, LIMITED = "pages", "mails", "limited"
QUEUES = (PAGES, MAILS, LIMITED)
# One of them floods the queues.
GROUPS = (None, "flood", "flood", "small", "tiny")
EVERY_MS = {"tick": 250, "mail": 400, "tock": 300}


class Player(NamedTuple):
    """A process to start. `target`: a file with a configuration, or the address of a server. `seed`: of its chances.

    `calm`: its jobs are quick and all go well. `mutant`: a rule to break, to see whether the checker notices.
    """

    role: str
    name: str
    target: str
    folder: str
    seed: int
    port: int = 0
    calm: bool = False
    mutant: str = ""


class HistoryFile:
    """Lines of one process, from any of its threads. What is written is there, whatever becomes of the process."""

    def __init__(self, path: Path, process: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._process = process
        self._lock = threading.Lock()
        self._number = 0

    def begin(self, op: str, queue: str, **fields: Any) -> str:
        with self._lock:
            self._number += 1
            found = f"{self._process}-{self._number}"
        self._write(**{"id": found, "process": self._process, "op": op, "queue": queue, "start": now_ms(), **fields})
        return found

    def end(self, operation: str, outcome: str, **fields: Any) -> None:
        self._write(id=operation, end=now_ms(), outcome=outcome, **fields)

    def _write(self, **fields: Any) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")


def now_ms() -> int:
    """The machine's clock, as the stores read it."""
    return time.time_ns() // 1_000_000


def text_of(data: bytes) -> str:
    return data.decode("latin-1")


def lease_fields(lease: JobLease) -> dict[str, Any]:
    row, image = lease.row, lease.row.image
    assert row.claimed_ms is not None
    return {
        "entry": row.entry,
        "token": row.token,
        "key": decode_key(row.key),
        "data": text_of(image.data),
        "claimed": row.claimed_ms,
        "deadline": lease.deadline_ms,
        "due": image.process_ms,
        "expires": image.expires_s * 1000,
        "inserted": image.inserted_ms,
        "dated": image.data_date,
        "group": image.group,
    }


def put_fields(packet: Packet) -> dict[str, Any]:
    due = packet.inserted_ms if packet.process_ms is None else packet.process_ms
    return {
        "key": decode_key(packet.key),
        "data": text_of(packet.data),
        "inserted": packet.inserted_ms,
        "due": due,
        "expires": packet.expires_s * 1000,
    }


def row_fields(row: JobRow) -> dict[str, Any]:
    return {"key": decode_key(row.key), "data": text_of(row.image.data), "entry": row.entry}


def fields_of(operation: Operation) -> tuple[str, dict[str, Any]] | None:
    """What is written about an operation when it begins; None if nothing is."""
    if isinstance(operation, Put):
        return "put", put_fields(operation.packet)
    if isinstance(operation, Claim):
        return "claim", {}
    if isinstance(operation, Heartbeat | Done | Fail | Release):
        name = type(operation).__name__.lower()
        return name, {"entry": operation.handle.entry, "token": operation.handle.token}
    if isinstance(operation, Cancel):
        return "cancel", {"key": decode_key(operation.key)}
    if isinstance(operation, SetSchedule):
        wanted = operation.schedule
        return "set", {"name": wanted.name, "every": wanted.every_ms, "catch_up": wanted.catch_up}
    if isinstance(operation, PauseSchedule) and operation.paused:
        return "pause", {"name": operation.name}
    return None


def outcome_of(answer: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(answer, PutAnswer):
        stored = answer.result not in ("REJECTED", "DROPPED", "IGNORED_LATE")
        return "ok" if stored else "fail", {"result": answer.result, "entry": answer.entry}
    if isinstance(answer, BeatAnswer):
        answer = answer.ack
    if isinstance(answer, str):
        return "ok" if answer == "OK" else "fail", {}
    if isinstance(answer, list) and all(isinstance(one, JobLease) for one in answer):
        return "ok", {"leases": [lease_fields(lease) for lease in answer]}
    return "ok", {}


def record(store: QueueStore, history: HistoryFile) -> QueueStore:
    """Let a store write down what it is asked, and what it answers; so do those that a worker makes of it."""
    execute, execute_all, put_all, sibling = store.execute, store.execute_all, store.put_all, store.sibling

    async def noted(name: str, operation: Operation) -> Any:
        known = fields_of(operation)
        if known is None:
            return await execute(name, operation)
        start = now_ms()
        # Most claims bring nothing. Of one whose outcome is unknown, nothing is known that the checker could use.
        number = "" if isinstance(operation, Claim) else history.begin(known[0], name, **known[1])
        answer = await execute(name, operation)
        outcome, fields = outcome_of(answer)
        if not number and fields["leases"]:
            number = history.begin("claim", name, start=start)
        if number:
            history.end(number, outcome, **fields)
        return answer

    async def noted_all(name: str, packets: Any) -> Any:
        numbers = [history.begin("put", name, **put_fields(packet)) for packet in packets]
        answers = await put_all(name, packets)
        for number, answer in zip(numbers, answers, strict=True):
            outcome, fields = outcome_of(answer)
            history.end(number, outcome, **fields)
        return answers

    async def noted_each(name: str, operations: Any) -> Any:
        known = [fields_of(operation) for operation in operations]
        numbers = ["" if one is None else history.begin(one[0], name, **one[1]) for one in known]
        answers = await execute_all(name, operations)
        for number, answer in zip(numbers, answers, strict=True):
            outcome, fields = outcome_of(answer)
            if number:
                history.end(number, outcome, **fields)
        return answers

    store.execute = noted  # type: ignore[method-assign]
    if type(store).execute_all is not QueueStore.execute_all:
        store.execute_all = noted_each  # type: ignore[method-assign]
    store.sibling = lambda: record(sibling(), history)  # type: ignore[method-assign]
    if type(store).put_all is not QueueStore.put_all:  # else it puts them one by one, and each is noted
        store.put_all = noted_all  # type: ignore[method-assign]
    return store


def connect(player: Player) -> everlog.Everlog:
    """On a cluster, queues are taken over after a second, so that a short run has many owners."""
    if player.target.startswith("http"):
        return everlog.connect(player.target)
    config = read_config(player.target)
    log = everlog.connect(config)
    if config.cassandra is not None:
        inner = CassandraQueueStore(config.cassandra, host="127.0.0.1", beat_s=0.2, takeover_s=1.0)
        log._queues = OwnThreadQueues(inner)
    return log


class Producer:
    """Puts jobs, in bursts: keys that merge, then never come again, so that what is lost is not put anew."""

    def __init__(self, log: everlog.Everlog, player: Player) -> None:
        self._log = log
        self._name = player.name
        self._chance = random.Random(player.seed)
        self._count = 0

    async def run(self) -> None:
        while True:
            queue = self._log.queue(self._chance.choice(QUEUES))
            jobs = [self._job() for _ in range(self._chance.choice([1, 1, 1, 1, 3, 10]))]
            with suppress(EverlogError):  # the outcome is unknown: that is what the history says
                if len(jobs) == 1:
                    await queue.put(**jobs[0]._asdict())
                else:
                    await queue.put_many(jobs)
            await asyncio.sleep(self._chance.choice([0, 0.01, 0.05, 0.1]))

    def _job(self) -> NewJob:
        chance = self._chance
        self._count += 1
        hot = f"{now_ms() // 1500}-{chance.randrange(12)}"  # for a second and a half, of all producers
        key = hot if chance.random() < 0.7 else f"{self._name}-{self._count}"
        at = delay = expires = None
        kind = chance.random()
        if kind < 0.15:
            delay = chance.choice([0.05, 0.3, 1.0])
        elif kind < 0.25:
            at = datetime.now(UTC) + timedelta(milliseconds=chance.randrange(700))
        elif kind < 0.3:
            expires = timedelta(seconds=1)
        priority, group = chance.choice([0, 20, 128, 200, 255]), chance.choice(GROUPS)
        return NewJob(key, f"{self._name}:{self._count}", priority, at, delay, expires, group=group)


class JobBehaviour:
    """What the functions of a worker do: they take time, block the event loop, raise, exit."""

    def __init__(self, player: Player, history: HistoryFile) -> None:
        self._calm = player.calm
        self._chance = random.Random(player.seed)
        self._history = history

    def _began(self, job: Job, **fields: Any) -> str:
        return self._history.begin("run", job.queue.name, entry=job.entry, token=job.token, **fields)

    async def run(self, job: Job) -> Any:
        seconds, how = self._choose()
        run = self._began(job, blocks=how == "block" and seconds == LONG_BLOCK_S)
        if how == "block":
            time.sleep(seconds)  # noqa: ASYNC251  (what a program must not do, and some do)
        elif seconds:
            await asyncio.sleep(seconds)
        self._end(how)
        self._history.end(run, "ok")
        return {"run": run}

    def run_plainly(self, job: Job) -> None:
        run = self._began(job)
        seconds, how = self._choose()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if job.stopping and how != "block":
                raise everlog.GiveBack
            time.sleep(min(0.02, left))
        self._end(how)
        self._history.end(run, "ok")

    def _choose(self) -> tuple[float, str]:
        if self._calm:
            return 0.0, "return"
        chance = self._chance
        seconds = chance.choice([0.0, 0.0, chance.random() * MAX_JOB_S, chance.random() * MAX_JOB_S, 2 * LEASE_S])
        how = chance.choices(
            ["return", "block", "raise", "exit", "cancel", "retry", "give up", "give back"],
            [60, 10, 8, 4, 4, 6, 2, 2],
        )[0]
        if how == "block":
            seconds = LONG_BLOCK_S if chance.random() < 0.3 else min(seconds, MAX_JOB_S)
        return seconds, how

    def _end(self, how: str) -> None:
        if how == "raise":
            raise ValueError("on purpose")
        if how == "exit":
            sys.exit(3)
        if how == "cancel":
            raise asyncio.CancelledError
        if how == "retry":
            raise everlog.Retry("on purpose", delay=self._chance.choice([None, "0s", "100ms"]))
        if how == "give up":
            raise everlog.GiveUp("on purpose")
        if how == "give back":
            raise everlog.GiveBack


async def work(log: everlog.Everlog, player: Player, history: HistoryFile) -> None:
    behaviour = JobBehaviour(player, history)

    @everlog.job(PAGES, timeout=LEASE_S)
    async def page(job: Job) -> Any:
        return await behaviour.run(job)

    @everlog.job(MAILS, every=timedelta(milliseconds=EVERY_MS["mail"]))
    def mail(job: Job) -> None:
        behaviour.run_plainly(job)

    @everlog.job(LIMITED)
    async def limited(job: Job) -> Any:
        return await behaviour.run(job)

    worker = log.worker([page, mail, limited], concurrency=random.Random(player.seed).choice([1, 3, 10]))
    with stop_signals() as stop:
        running = asyncio.create_task(_run_again(worker.run, player))
        await stop.wait()
        worker.stop()
        await running


async def _run_again(run: Callable[[], Awaitable[None]], player: Player) -> None:
    """A worker that finds no server when it starts ends with the error; whoever runs it starts it again."""
    while True:
        try:
            return await run()
        except EverlogError as error:
            logger.warning("%s starts again: %s", player.name, error)
            await asyncio.sleep(0.2)


async def claim_by_hand(log: everlog.Everlog, player: Player) -> None:
    """Takes jobs with leases of its own choice, and ends some of them late, or under a handle that it has lost. Cancels
    some that run, and some that wait."""
    chance = random.Random(player.seed)

    async def cancel(job: JobInfo, queue: Queue) -> None:
        if str(job.key).partition("@")[0] not in EVERY_MS:  # each time of a schedule is expected to run
            await queue.cancel(job.key, "by chance")

    async def serve(job: Job) -> None:
        if chance.random() < 0.05:
            await cancel(job, job.queue)
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(chance.random() * LEASE_S)
            if chance.random() < 0.7:
                await job.heartbeat()
        end = chance.choice([job.done, job.done, job.release, lambda: job.fail("by hand", delay="50ms")])
        await end()

    async def quietly(job: Job) -> None:
        with suppress(EverlogError, LeaseLost):
            await serve(job)

    async with asyncio.TaskGroup() as tasks:
        while True:
            queue = log.queue(chance.choice(QUEUES))
            with suppress(EverlogError):
                lease = chance.choice([None, 0.3, LEASE_S])
                for job in await queue.claim(chance.choice([1, 2, 5]), owner=player.name, lease=lease):
                    tasks.create_task(quietly(job))
                if chance.random() < 0.05:
                    for found in await queue.peek(1):
                        await cancel(found, queue)
            await asyncio.sleep(chance.random() * 0.5)


async def serve(log: everlog.Everlog, player: Player) -> None:
    with stop_signals() as stop:
        while not stop.is_set():
            with suppress(OSError):  # a server that was stopped may still have the port
                async with serving(log, host="127.0.0.1", port=player.port):
                    await stop.wait()
            await asyncio.sleep(0.1)


def _last_time_again(row: schedule.ScheduleRow, now: int) -> list[int] | None:
    """As if times up to the mark, and not only those behind it, were due."""
    times = schedule.due_times(row, now)
    return [row.done_ms, *times] if times and row.catch_up == "all" and row.fired_ms else times


# What the chaos must find: a token that no longer counts, what arrived while a job ran, a group without limits, and
# times that were put already.
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "fence": (rules, "holds", lambda row, token: row is not None and row.status == "P"),
    "successor": (rules, "live_slot", lambda row, now: (None, 0)),
    "group": (claim_order.ClaimOrder, "room_of", lambda order, group: order._rooms.setdefault(group, 1 << 31)),
    "schedule": (timetable, "due_times", _last_time_again),
}


def play(player: Player) -> None:
    """The whole life of a process."""
    folder = Path(player.folder)
    logging.basicConfig(filename=folder / f"{player.name}.log", level=logging.INFO, force=True)
    if player.mutant:
        target, name, broken = MUTANTS[player.mutant]
        setattr(target, name, broken)
    asyncio.run(_play(player, HistoryFile(folder / f"{player.name}.jsonl", player.name)))


async def _play(player: Player, history: HistoryFile) -> None:
    log = connect(player)
    try:
        async with log:
            if player.role != "server":  # what it does for others, they write down
                record(log.queues, history)
            if player.role == "producer":
                await Producer(log, player).run()
            elif player.role == "worker":
                await work(log, player, history)
            elif player.role == "hand":
                await claim_by_hand(log, player)
            else:
                await serve(log, player)
    except EverlogError:
        logger.exception("%s ends", player.name)
        raise
