"""kill -9 and SIGSTOP of processes whose view is in Cassandra: each record counts once, repeats stay in a window."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import msgspec
import pytest

import everlog
from everlog.config import ProjectionsConfig
from everlog.runtime.failpoints import REBUILD_POINTS, VIEW_POINTS
from tests.models.projection_process import SPLIT, TABLES, WINDOW, declare
from tests.models.rebuild_process import declare as declare_words
from tests.projections.test_copies import STEPS, command
from tests.projections.test_kills import fill, instances
from tests.projections.test_request_processes import killed_while_it_fills

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def settings(cluster_config, *, lease: float):
    config = cluster_config(partitions=SPLIT)
    return msgspec.structs.replace(config, projections=ProjectionsConfig(lease_s=lease, poll_interval_s=0.05))


async def make_tables(log) -> None:
    for name in ("exact", "least"):
        await log.projections.view(name).execute(TABLES[name])


async def counted(log, name: str) -> tuple[int, int]:
    """How often records were counted, and how many different ones."""
    rows = await log.projections.view(name).fetch(f"SELECT n FROM {name}")
    return sum(n or 0 for (n,) in rows), len(rows)


async def different(log, name: str, count: int) -> None:
    async with asyncio.timeout(600):
        while (await counted(log, name))[1] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def kill_instances(config, folder, *, records: int, kills: int) -> None:
    chance = random.Random(kills)
    async with everlog.connect(config) as log:
        await make_tables(log)
        await fill(log, records)
        with instances(config, folder) as found:
            for _ in range(3):
                found.start()
            for number in range(kills):
                await different(log, "exact", records * (number + 1) // (kills + 1))
                found.kill(chance.choice(found.running))
                found.start()
            for name in ("exact", "least"):
                await different(log, name, records)
        assert await counted(log, "exact") == (records, records), "each record once, whatever died"
        count, found_records = await counted(log, "least")
        assert found_records == records
        assert count - records <= (kills * SPLIT + found.lost) * WINDOW, "a window per key that changed hands by force"
        async with log.projections.run(*declare(config, SPLIT)):
            while any(one.lag.events for one in await log.projections.list("exact")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        exact, _ = declare(config, SPLIT)
        (difference,) = await log.projections.verify(exact)
        assert (difference.rows, difference.equal) == (records, True)


async def test_a_kill(cluster_config, tmp_path):
    """Three instances share four keys; one is killed and replaced on the way; a recount finds the same."""
    await kill_instances(settings(cluster_config, lease=2.0), tmp_path, records=300, kills=1)


@pytest.mark.parametrize("point", [f"{VIEW_POINTS[0]}:7", f"{VIEW_POINTS[1]}:3"])
async def test_a_death_between_partitions(cluster_config, tmp_path, point):
    """Some partitions have rows of events whose offset is not stored: the next owner counts them once all the same."""
    records, config = 120, settings(cluster_config, lease=1.5)
    async with everlog.connect(config) as log:
        await make_tables(log)
        await fill(log, records)
        with instances(config, tmp_path) as found:
            found.start(failpoint=point)
            assert await asyncio.to_thread(found.running[0].wait, 60) == -signal.SIGKILL
            assert 0 < (await counted(log, "exact"))[0] < records
            found.start()
            await different(log, "exact", records)
        assert await counted(log, "exact") == (records, records)


@pytest.mark.faults
async def test_many_kills(cluster_config, tmp_path):
    await kill_instances(settings(cluster_config, lease=2.0), tmp_path, records=4000, kills=5)


@pytest.mark.soak
@pytest.mark.timeout(20_000)
async def test_a_hundred_thousand_records(cluster_config, tmp_path):
    await kill_instances(settings(cluster_config, lease=3.0), tmp_path, records=100_000, kills=60)


async def test_a_stale_owner_that_wakes_up_changes_nothing(cluster_config, tmp_path):
    """SIGSTOP for longer than the lease: another instance takes over; the sleeper wakes and must not count again."""
    records, config = 400, settings(cluster_config, lease=1.5)
    async with everlog.connect(config) as log:
        await make_tables(log)
        await fill(log, records)
        with instances(config, tmp_path) as found:
            found.start(120)
            (sleeper,) = found.running
            await asyncio.to_thread(os.waitid, os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
            assert 0 < (await counted(log, "exact"))[0] < records
            found.start()
            await different(log, "exact", records)
            store = await log.projections.store()
            offsets = {one.key: one.offset for one in await log.projections.list("exact")}
            before = {key: lease.beat for key, lease in (await store.leases("exact")).items()}
            sleeper.send_signal(signal.SIGCONT)

            async def beats() -> bool:
                now = await store.leases("exact")
                return all(now[key].beat > beat + 3 for key, beat in before.items())

            while not await beats():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            after = {one.key: one.offset for one in await log.projections.list("exact")}
            assert all(after[key][entry] >= at for key, one in offsets.items() for entry, at in one.items())
        assert await counted(log, "exact") == (records, records)


WORDS = "CREATE TABLE words (key text, n int, text text, everlog_mark text static, PRIMARY KEY (key, n))"


async def texts(log) -> set[str]:
    return {text for (text,) in await log.projections.view("words").fetch("SELECT text FROM words") if text is not None}


@pytest.mark.faults
@pytest.mark.parametrize("point", REBUILD_POINTS)
async def test_whatever_dies_readers_see_one_copy(cluster_config, tmp_path, point):
    """As on the embedded store: the command dies at this point, what is read is one whole copy."""
    await rebuild_with_a_death(settings(cluster_config, lease=2.0), tmp_path, point)


async def test_a_switch_that_dies(cluster_config, tmp_path):
    await rebuild_with_a_death(settings(cluster_config, lease=2.0), tmp_path, "switch.moved")


async def test_a_rebuild_on_request_outlives_the_process_that_does_it(cluster_config, tmp_path):
    async with everlog.connect(settings(cluster_config, lease=1.0)) as log:
        await fill_words(log)
        await killed_while_it_fills(log, tmp_path)
        assert await texts(log) == {"new"}
        rows = await log.projections.view("words").fetch("SELECT key FROM words")
        assert len(rows) == 20


async def fill_words(log) -> None:
    """A view of the old version that has all there is."""
    await log.projections.view("words").execute(WORDS)
    await fill(log, 20)
    async with log.projections.run(declare_words(log.config, "old")):
        while len(await log.projections.view("words").fetch("SELECT key FROM words")) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def rebuild_with_a_death(config, folder, point: str) -> None:
    async with everlog.connect(config) as log:
        await fill_words(log)
        *before, last = STEPS[point]
        for one in before:
            assert command(config, folder, one) == 0
        assert command(config, folder, last, point) == -signal.SIGKILL
        current = {"new"} if point == "switch.moved" else {"old"}
        assert await texts(log) == current
        assert command(config, folder, "rebuild") == 0
        assert await texts(log) == current
        await log.projections.switch("words")
        assert await texts(log) == {"new"}
        rows = await log.projections.view("words").fetch("SELECT key FROM words")
        assert len(rows) == 20
        seen = await log.projections.copies("words")
        assert (seen.building, seen.garbage) == (None, ())
