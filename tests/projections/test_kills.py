"""kill -9 and SIGSTOP of real processes that share a projection: views stay exact, repeats stay within a window."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.config import Config, LogConfig, ProjectionsConfig, StoreConfig
from everlog.runtime.failpoints import VARIABLE
from tests.models.projection_process import LOST, SPLIT, WINDOW, declare

FILL = 10_000
LOST_KEY = re.compile(rf"^least-.*: (?:{LOST}|another instance has taken it over)$", re.MULTILINE)


def config_of(folder: Path, lease: float) -> Config:
    return Config(
        data=str(folder),
        log=LogConfig(partitions=SPLIT, synchronous="NORMAL"),
        store=StoreConfig(synchronous="NORMAL"),
        projections=ProjectionsConfig(lease_s=lease, poll_interval_s=0.05),
    )


class Instances:
    """Processes that run the same projections."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._file = folder / "config.json"
        self._file.write_bytes(msgspec.json.encode(config))
        self._said = folder / "errors.txt"
        self._errors = self._said.open("ab")
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *sleep_after: int, failpoint: str | None = None) -> None:
        command = [sys.executable, "-m", "tests.models.projection_process", str(self._file), str(SPLIT)]
        command += map(str, sleep_after)
        environment = {**os.environ, **({} if failpoint is None else {VARIABLE: failpoint})}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, env=environment)
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self.running.remove(process)

    @property
    def lost(self) -> int:
        """How often an instance that lives lost a key of `least`: on a busy machine it could not renew in time."""
        return len(LOST_KEY.findall(self._said.read_text()))

    def close(self) -> None:
        for process in list(self.running):
            self.kill(process)
        self._errors.close()


@contextmanager
def instances(config: Config, folder: Path):
    found = Instances(config, folder)
    try:
        yield found
    finally:
        found.close()


async def fill(log, records: int) -> None:
    orders = log.journal("orders")
    for first in range(0, records, FILL):
        numbers = range(first, min(first + FILL, records))
        await asyncio.gather(*(orders.append(f"o-{number}", Event(number), verdict=False) for number in numbers))


async def make_tables(log) -> None:
    for name in ("exact", "least"):
        await log.projections.view(name).execute(f"CREATE TABLE {name} (partition INTEGER, offset INTEGER)")


async def rows(log, name: str) -> tuple[int, int]:
    """How many there are, and how many different ones."""
    statement = f"SELECT count(*), count(DISTINCT partition || '-' || offset) FROM {name}"
    return (await log.projections.view(name).fetch(statement))[0]


async def different(log, name: str, count: int, patience: float = 200.0) -> None:
    async with asyncio.timeout(patience):
        while (await rows(log, name))[1] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def kill_instances(folder: Path, *, records: int, kills: int, patience: float = 200.0) -> None:
    config, chance = config_of(folder / "data", lease=1.0), random.Random(kills)
    async with everlog.connect(config) as log:
        await make_tables(log)
        await fill(log, records)
        with instances(config, folder) as found:
            for _ in range(3):
                found.start()
            for number in range(kills):
                wanted = records * (number + 1) // (kills + 1)
                await different(log, "exact", wanted, patience)
                found.kill(chance.choice(found.running))
                found.start()
            for name in ("exact", "least"):
                await different(log, name, records, patience)
    async with everlog.connect(config) as log:
        assert await rows(log, "exact") == (records, records), "each record once, whatever died"
        count, found_records = await rows(log, "least")
        assert found_records == records
        assert count - records <= (kills * SPLIT + found.lost) * WINDOW, "a window per key that changed hands by force"
        (difference,) = await log.projections.verify(declare(config, SPLIT)[0])
        assert (difference.rows, difference.equal) == (records, True), "the view is what a recount gives"


async def test_a_few_kills(tmp_path):
    """Three instances share four keys; two of them are killed and replaced on the way."""
    await kill_instances(tmp_path, records=2000, kills=2)


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_many_kills(tmp_path):
    """The same with more of everything."""
    await kill_instances(tmp_path, records=40_000, kills=20)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_million_records(tmp_path):
    """A million records, three instances, one killed again and again."""
    await kill_instances(tmp_path, records=1_000_000, kills=60, patience=3600.0)


async def test_a_stale_owner_that_wakes_up_changes_nothing(tmp_path):
    """SIGSTOP for longer than the lease: another instance takes over; the sleeper wakes and must not count again."""
    records = 6000
    config = config_of(tmp_path / "data", lease=0.6)
    async with everlog.connect(config) as log:
        await make_tables(log)
        await fill(log, records)
        with instances(config, tmp_path) as found:
            found.start(100)
            (sleeper,) = found.running
            await asyncio.to_thread(os.waitid, os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
            assert 100 <= (await rows(log, "exact"))[0] < records
            owners = {one.owner for one in await log.projections.list("exact")}
            assert len(owners) == 1
            found.start()
            await different(log, "exact", records)
            await different(log, "least", records)
            store = await log.projections.store()
            before = {key: lease.beat for key, lease in (await store.leases("exact")).items()}

            async def beats() -> bool:
                now = await store.leases("exact")
                return all(now[key].beat > beat + 3 for key, beat in before.items())

            assert owners.isdisjoint(lease.owner for lease in (await store.leases("exact")).values())

            sleeper.send_signal(signal.SIGCONT)
            while not await beats():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await rows(log, "exact") == (records, records)
        offsets = [one.offset for one in await log.projections.list("exact")]
        ends = {f"journal-orders-{nr}": (await end(log, nr)) - 1 for nr in range(SPLIT)}
        assert {name: place for one in offsets for name, place in one.items()} == ends


async def end(log, partition: int) -> int:
    topic = await log.parts.log.topic("journal-orders")
    return (await log.parts.log.bounds(topic, partition)).end
