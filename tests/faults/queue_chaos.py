"""Chaos on queues: producers, workers, servers and owners are killed, stopped past their leases and continued.

Afterwards all that is there is counted, calm workers do what is left, and the checker reads what all of them have
written down. A failure prints the seed, what does not hold, and the operations that show it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import everlog
from everlog.config import Config
from everlog.queues.queue import Queue
from tests.faults.queue_history import Finding, Operation, QueueLimits, check, load
from tests.faults.queue_players import (
    EVERY_MS,
    LEASE_S,
    LIMITED,
    MAILS,
    PAGES,
    QUEUES,
    HistoryFile,
    Player,
    connect,
    play,
    record,
    row_fields,
)
from tests.pipeline.backends import write_config
from tests.waiting import until

SERVERS = 2
MAX_IN_FLIGHT, RATE = 4, 20
MAX_IN_FLIGHT_PER_GROUP, RATE_PER_GROUP = 2, 12
LIMITS = {
    PAGES: QueueLimits(),
    MAILS: QueueLimits(),
    LIMITED: QueueLimits(MAX_IN_FLIGHT, (RATE, 1000), MAX_IN_FLIGHT_PER_GROUP, (RATE_PER_GROUP, 1000)),
}
DRAINED_S = 60.0


def options_of(chance: random.Random, shards: int) -> dict[str, dict[str, Any]]:
    """What the queues of a run are declared to be: some of it by chance."""
    lease = {"processing_timeout": LEASE_S}
    return {
        PAGES: {**lease, "keep_done": "1h", "max_timeouts": 6, "bucket": chance.choice(["hour", "none"])},
        MAILS: {
            **lease,
            "retry_backoff": "20ms",
            "on_busy": chance.choice(["successor", "restart", "reject"]),
            "placement": chance.choice(["shared", "dedicated"]),
            "shards": shards,
        },
        LIMITED: {
            **lease,
            "max_in_flight": MAX_IN_FLIGHT,
            "rate_limit": f"{RATE}/s",
            "max_in_flight_per_group": MAX_IN_FLIGHT_PER_GROUP,
            "rate_limit_per_group": f"{RATE_PER_GROUP}/s",
            "max_timeouts": 20,
        },
    }


class Chaos:
    """One run. `pace_s`: how long it is quiet between two faults, at most."""

    def __init__(self, config: Config, folder: Path, *, seed: int, pace_s: float, mutant: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.seed = seed
        self.faults: Counter[str] = Counter()
        self._config = config
        self._folder = folder
        self._pace_s = pace_s
        self._mutant = mutant
        self._chance = random.Random(seed)
        self._file = str(write_config(config, folder / "config.json"))
        self._ports = [_free_port() for _ in range(SERVERS)]
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.faults.queue_players"])
        self._living: dict[str, tuple[Player, ForkServerProcess]] = {}
        self._stuck: list[Finding] = []
        self._limits = dict(LIMITS)
        self._history = HistoryFile(folder / "judge.jsonl", "judge")

    async def run(self, seconds: float, *, shards: int = 1) -> list[Finding]:
        """All of it; what the checker finds."""
        try:
            async with self._connect() as log:
                await self._declare(log, shards)
            # The judge is gone by now: on a cluster it would own all queues, and is never killed.
            self._cast()
            await self._torment(seconds)
            self._end_all(signal.SIGKILL)
            async with self._connect() as log:
                for name in QUEUES:
                    await self._count_at_rest(log.queue(name))
            self._start("worker", self._file, calm=True)
            async with self._connect() as log:
                await asyncio.gather(*(self._drained(log.queue(name)) for name in QUEUES))
                for name in QUEUES:
                    await self._count(log.queue(name))
        finally:
            self._end_all(signal.SIGKILL)
        return [*self._stuck, *check(self.operations(), self._limits)]

    def operations(self) -> list[Operation]:
        return load(sorted(self._folder.glob("*.jsonl")))

    def _connect(self) -> everlog.Everlog:
        return _Judge(connect(Player("judge", "judge", self._file, str(self._folder), 0)), self._history)

    async def _declare(self, log: everlog.Everlog, shards: int) -> None:
        for name, options in options_of(self._chance, shards).items():
            await log.queue(name).declare(**options)
            refuses = options.get("on_busy") == "reject"
            self._limits[name] = self._limits[name]._replace(refuses_busy=refuses)
        await log.queue(PAGES).schedules.set("tick", every=EVERY_MS["tick"] / 1000, catch_up="all")
        await log.queue(PAGES).schedules.set("tock", every=EVERY_MS["tock"] / 1000, catch_up="none")

    def _cast(self) -> None:
        addresses = [f"http://127.0.0.1:{port}" for port in self._ports]
        for port in self._ports:
            self._start("server", self._file, port=port)
        for role, target in (
            ("producer", self._file),
            ("producer", addresses[0]),
            ("worker", self._file),
            ("worker", self._file),
            ("worker", addresses[1]),
            ("hand", self._file),
            ("hand", addresses[0]),
        ):
            self._start(role, target)

    def _start(self, role: str, target: str, *, port: int = 0, calm: bool = False) -> None:
        name = f"{role}{sum(self.faults.values())}-{len(self._living)}-{self._chance.randrange(1000)}"
        seed = self._chance.randrange(1 << 30)
        player = Player(role, name, target, str(self._folder), seed, port, calm, self._mutant)
        process = self._context.Process(target=play, args=(player,), name=name)
        process.start()
        self._living[name] = (player, process)

    async def _torment(self, seconds: float) -> None:
        """One fault after the other, to any process but those that are stopped now."""
        ends = time.monotonic() + seconds
        stopped: dict[str, asyncio.Task[None]] = {}
        while time.monotonic() < ends:
            await asyncio.sleep(self._chance.uniform(0.1, self._pace_s))
            stopped = {name: task for name, task in stopped.items() if not task.done()}
            name = self._chance.choice(sorted(set(self._living) - set(stopped)))
            player, process = self._living[name]
            fault = self._chance.choices(["kill", "stop", "end"], [5, 4, 1])[0]
            self.faults[f"{fault} {player.role}"] += 1
            if not process.is_alive():
                self.faults[f"found dead {player.role}"] += 1
                self._replace(name)
            elif fault == "stop":
                stopped[name] = asyncio.create_task(self._stop_for_a_while(process))
            elif fault == "kill":
                process.kill()
                self._replace(name)
            else:
                process.terminate()
                stopped[name] = asyncio.create_task(self._replace_when_it_ends(name, process))
        await asyncio.gather(*stopped.values())

    async def _stop_for_a_while(self, process: ForkServerProcess) -> None:
        """For longer than a lease, most times."""
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._chance.uniform(0.5, 2.5) * LEASE_S)
        finally:
            os.kill(process.pid, signal.SIGCONT)

    async def _replace_when_it_ends(self, name: str, process: ForkServerProcess) -> None:
        await asyncio.to_thread(process.join, 10)
        process.kill()
        self._replace(name)

    def _replace(self, name: str) -> None:
        player, process = self._living.pop(name)
        process.join()
        self._start(player.role, player.target, port=player.port)

    def _end_all(self, number: int) -> None:
        for _, process in self._living.values():
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, number)
        for _, process in self._living.values():
            process.join()
        self._living.clear()

    async def _count_at_rest(self, queue: Queue) -> None:
        """When the last lease is over and nothing can begin."""
        await _patiently(queue.pause)

        async def nothing_runs() -> bool:
            await queue.claim(1)  # a paused queue gives out nothing, and turns over what is overdue
            stats = await queue.stats()
            return not stats.running and not await queue.leases()

        await _patiently(nothing_runs)
        await self._count(queue)
        await _patiently(queue.resume)

    async def _count(self, queue: Queue) -> None:
        stats = await _patiently(queue.stats)
        waiting = [row_fields(info.row) async for info in queue.jobs(1000)]
        running = [row_fields(info.row) for info in await queue.leases(1000)]
        letters, page = [], await queue.dead(1000)
        while page:
            letters += page
            page = await queue.dead(1000, before=page[-1])
        number = self._history.begin("count", queue.name)
        counts = {name: getattr(stats, name) for name in ("ready", "delayed", "running", "dead")}
        dead = [
            {"key": one.key, "data": "t" + str(one.data), "entry": one.entry, "cause": one.cause, "reason": one.reason}
            for one in letters
        ]
        self._history.end(number, "ok", stats=counts, waiting=waiting, running=running, dead=dead)

    async def _drained(self, queue: Queue) -> None:
        for schedule in await _patiently(queue.schedules.list):
            await _patiently(lambda name=schedule.name: queue.schedules.pause(name))

        async def empty() -> bool:
            stats = await queue.stats()
            return not stats.ready + stats.delayed + stats.running

        try:
            await _patiently(empty, seconds=DRAINED_S)
        except TimeoutError:
            stats = await _patiently(queue.stats)
            self._stuck.append(Finding("stuck", f"{queue.name} is not drained after {DRAINED_S:.0f} s: {stats}"))

    def report(self, findings: Sequence[Finding]) -> str:
        """What a failure says."""
        return "\n".join([f"seed {self.seed}, {len(findings)} findings in {self._folder}", *map(str, findings[:10])])

    def summary(self) -> str:
        """What happened, in a few lines."""
        operations = self.operations()
        kinds = Counter(f"{one['op']} {one['outcome']}" for one in operations)
        leases = sum(len(one.get("leases", ())) for one in operations)
        results = Counter(one["result"] for one in operations if "result" in one)
        return f"seed {self.seed}: {leases} claims\n{_shown(kinds)}\n{_shown(results)}\n{_shown(self.faults)}"


class _Judge:
    """The run's own connection, which writes down what it does, too."""

    def __init__(self, log: Any, history: HistoryFile) -> None:
        self._log = log
        self._history = history

    async def __aenter__(self) -> everlog.Everlog:
        log: everlog.Everlog = await self._log.__aenter__()
        record(log.queues, self._history)
        return log

    async def __aexit__(self, *error: object) -> None:
        await self._log.__aexit__(*error)


async def _patiently(ask: Any, *, seconds: float = 60.0) -> Any:
    """Ask until there is an answer that counts: an owner may have to be replaced first."""

    async def answered() -> Any:
        try:
            return (await ask(),)
        except everlog.EverlogError:
            return None

    async def satisfied() -> Any:
        found = await answered()
        return None if found is None or found == (False,) else found

    (found,) = await until(satisfied, seconds=seconds, every=0.05)
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
