"""Bucket files: new jobs go to the open one, old ones drain, a crash between two files leaves nothing double."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everlog.queues.keys import encode_key, hash_key
from everlog.queues.operations import Claim, Put
from everlog.queues.rows import Packet
from everlog.queues.sqlite.catalog import period
from everlog.queues.sqlite.files import ITEM, BucketFiles
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.runtime.failpoints import VARIABLE
from everlog.testing.queue_desk import HOUR, T, VirtualClock, VirtualQueue, handle, keys, number
from tests.waiting import until

START = T // HOUR * HOUR


@pytest.fixture
def clock():
    return VirtualClock(START)


@pytest.fixture
async def desk(tmp_path, clock):
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    yield desk
    await desk.store.close()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "queues").glob("queue-*.db"))


async def tend(desk: VirtualQueue) -> None:
    await desk.store.tend(desk.name)


def test_periods_are_those_of_the_calendar():
    assert period("hour", START + 1)[0] == START
    assert [period(kind, 1_709_164_800_000 + 5)[1] for kind in ("hour", "day", "month", "none")] == [
        "2024-02-29T00",
        "2024-02-29",
        "2024-02",
        "all",
    ]


@pytest.mark.case("journal-tables", 40)
@pytest.mark.parametrize("on_empty", ["delete", "reset", "truncate"])
async def test_an_hour_ends_with_jobs_left(desk, tmp_path, on_empty):
    """New jobs go to the new file, the old ones stay claimable in one order; drained, the file follows on_empty."""
    await desk.declare(bucket="hour", on_empty=on_empty, secure=True)
    for n in range(3):
        await desk.enq(f"old{n}", pri=10 * n, data=f"1{n}" * 2000)
    (old,) = files(tmp_path)
    desk.wait(HOUR)
    for n in range(3):
        await desk.enq(f"new{n}", pri=10 * n + 5)
    assert len(files(tmp_path)) == 2
    await tend(desk)
    assert len(files(tmp_path)) == 2
    leases = await desk.claim(10)
    assert keys(leases) == ["old0", "new0", "old1", "new1", "old2", "new2"]
    assert [await desk.done(lease) for lease in leases] == ["OK"] * 6
    size = (tmp_path / "queues" / old).stat().st_size
    await tend(desk)
    kept = tmp_path / "queues" / old
    assert kept.exists() == (on_empty != "delete")
    if kept.exists():
        assert (kept.stat().st_size < size) == (on_empty == "truncate")
        for file in kept.parent.glob(f"{old}*"):
            assert b"1010101010" not in file.read_bytes()
    assert (await desk.enq("after")).result == "CREATED"
    assert keys(await desk.claim(10)) == ["after"]


async def test_without_secure_the_bytes_stay_behind(desk, tmp_path):
    """What `secure` is for: a file that is only reset keeps what was in it."""
    await desk.declare(bucket="hour", on_empty="reset")
    await desk.enq(data="1234567890" * 2000)
    (old,) = files(tmp_path)
    await desk.done(await desk.one())
    desk.wait(HOUR)
    await desk.enq("new")
    await tend(desk)
    assert b"1234567890" in (tmp_path / "queues" / old).read_bytes()


async def test_a_handle_ends_jobs_of_its_own_queue_only(desk, clock):
    """Queues that share files share the numbers of entries: nobody's handle fits another's job."""
    await desk.declare(placement="shared")
    other = VirtualQueue(desk.store, clock, "other")
    await other.declare(placement="shared")
    await desk.enq()
    await other.enq()
    lease = await desk.one()
    assert await other.done(lease) == "LEASE_LOST"
    assert await desk.done(lease) == "OK"
    assert len(await other.claim()) == 1


async def test_a_merge_moves_a_job_to_the_open_bucket(desk, tmp_path):
    await desk.declare(bucket="hour", on_empty="delete")
    first = await desk.enq(pri=50, data=1)
    lease = await desk.one()
    await desk.fail(lease, delay=0)
    desk.wait(HOUR)
    answer = await desk.enq(pri=20, data=2)
    assert (answer.result, answer.entry) == ("MERGED", first.entry)
    row = await desk.row()
    assert (row.image.priority, row.lifetime, row.token, number(row)) == (20, 1, lease.row.token, 2)
    await tend(desk)
    assert len(files(tmp_path)) == 1
    assert handle(await desk.one()) == (first.entry, lease.row.token + 1)


async def test_a_running_job_stays_where_it_is(desk, tmp_path):
    await desk.declare(bucket="hour", processing_timeout="3h")
    await desk.enq(data=1)
    lease = await desk.one()
    desk.wait(HOUR)
    assert (await desk.enq(data=2)).result == "SUCCESSOR"
    assert (await desk.beat(lease)).ack == "OK"
    await tend(desk)
    assert len(files(tmp_path)) == 2
    assert await desk.done(lease) == "OK"
    again = await desk.one()
    assert number(again.row) == 2
    assert await desk.done(again) == "OK"


async def test_too_many_buckets_are_carried(desk, tmp_path):
    """A job for next month pins no hour file: it moves on, with its lease and all."""
    await desk.declare(bucket="hour", max_buckets=3, on_empty="delete", processing_timeout="20h")
    await desk.enq("far", proc=40 * 24 * HOUR)
    await desk.enq("running")
    running = await desk.one()
    for n in range(10):
        desk.wait(HOUR)
        await desk.enq(f"k{n}", proc=40 * 24 * HOUR)
        await tend(desk)
        await until(lambda: len(files(tmp_path)) <= 3)  # a new bucket has the same done beside this
    assert (await desk.stats()).delayed == 11
    assert await desk.done(running) == "OK"
    assert (await desk.row("far")).image.process_ms == T + 40 * 24 * HOUR


async def test_a_file_that_was_removed_is_not_made_again(desk, tmp_path):
    """Another process has looked which buckets there are, and opens one only after it was drained and removed."""
    await desk.declare(bucket="hour", on_empty="delete")
    await desk.enq("a")
    late = BucketFiles(tmp_path)
    known = late.known("jobs")
    desk.wait(HOUR)
    await desk.enq("b")
    await desk.done(await desk.one())
    await tend(desk)
    await until(lambda: len(files(tmp_path)) == 1)
    (opened,) = late.live(known)
    assert opened.bucket.file == "queue-jobs-1.2023-11-14T23.db"
    assert files(tmp_path) == ["queue-jobs-1.2023-11-14T23.db"]
    with late.transaction("jobs", desk.clock.now_ms()) as (_, buckets):
        assert [one.bucket.file for one in buckets] == ["queue-jobs-1.2023-11-14T23.db"]
    late.close()
    assert sorted(file.name for file in (tmp_path / "queues").glob("queue-*T22*")) == []


@pytest.mark.parametrize("on_empty", ["delete", "truncate"])
async def test_several_remove_files_while_others_use_the_queue(tmp_path, clock, on_empty):
    """Three stores on one folder, as in three processes: whichever file one of them removes, the others go on."""
    desks = [VirtualQueue(SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock), clock) for _ in range(3)]
    await desks[0].declare(bucket="hour", max_buckets=2, on_empty=on_empty)
    ended: list[str] = []

    async def work(desk: VirtualQueue, key: str) -> None:
        await desk.enq(key)
        for lease in await desk.claim(2):
            assert await desk.done(lease) == "OK"
            ended.extend(keys([lease]))
        await tend(desk)

    for hour in range(15):
        clock.now += HOUR
        await asyncio.gather(*(work(desk, f"{hour}-{at}") for at, desk in enumerate(desks)))
    while leases := await desks[0].claim(10):
        ended += keys(leases)
        assert [await desks[0].done(lease) for lease in leases] == ["OK"] * len(leases)
    assert sorted(ended) == sorted(f"{hour}-{at}" for hour in range(15) for at in range(3))
    for desk in desks:
        await tend(desk)
        assert not await desk.flags()
    assert len(files(tmp_path)) <= 2
    for desk in desks:
        await desk.store.close()


async def test_a_clock_that_goes_back_opens_no_older_bucket(desk, tmp_path):
    await desk.declare(bucket="hour")
    await desk.enq("a")
    desk.wait(HOUR)
    await desk.enq("b")
    desk.wait(-HOUR)
    await desk.enq("c")
    assert len(files(tmp_path)) == 2
    assert sorted(keys(await desk.claim(10))) == ["a", "c"]
    desk.wait(HOUR)
    assert keys(await desk.claim(10)) == ["b"]


async def test_new_columns_open_a_bucket(desk, tmp_path):
    from everlog.queues.columns import Column
    from everlog.queues.declaration import ColumnSchema

    await desk.declare(ColumnSchema(1, ("page",), (Column("page", "string"),)))
    await desk.enq("a")
    await desk.declare(ColumnSchema(1, ("page",), (Column("page", "string"), Column("size", "int8"))))
    await desk.enq("b", schema=2)
    assert {name.split(".")[1] for name in files(tmp_path)} == {"2023-11-14", "2023-11-14-v2"}


async def test_changing_the_period_loses_nothing(desk):
    for bucket in ("hour", "day", "none", "hour"):
        await desk.declare(bucket=bucket)
        await desk.enq(f"in-{bucket}-{desk.clock.now}")
        desk.wait(1)
    assert len(await desk.claim(10)) == 4


MOVER = """
import asyncio, sys
from pathlib import Path
from everlog.testing.queue_desk import HOUR, VirtualQueue, VirtualClock
from everlog.queues.sqlite.queue_store import SqliteQueueStore

async def main():
    clock = VirtualClock(int(sys.argv[2]))
    store = SqliteQueueStore(Path(sys.argv[1]), synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    if sys.argv[3] == "merge":
        await desk.enq("a", data=2)
    else:
        await store.tend("jobs")
asyncio.run(main())
"""


def run_mover(folder, now, what, point):
    environment = {**os.environ, VARIABLE: point}
    done = subprocess.run(
        [sys.executable, "-c", MOVER, str(folder), str(now), what], env=environment, check=False, capture_output=True
    )
    assert done.returncode == -9, done.stderr.decode()


@pytest.mark.case("journal-tables", 45)
@pytest.mark.parametrize("point", ["queue.bucket:1", "queue.bucket:2", "queue.committed"])
async def test_killed_in_the_middle_of_a_move(tmp_path, clock, point):
    """Killed before, between and after the two commits of a merge over two files: one job, one run, no handle twice."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    await desk.declare(bucket="hour", on_empty="delete")
    first = await desk.enq("a", data=1)
    old = await desk.one()
    await desk.release(old)
    desk.wait(HOUR)
    await desk.enq("b", data=1)
    run_mover(tmp_path, clock.now, "merge", point)
    copies = [
        opened.connection.execute(ITEM["exists"], (first.entry,)).fetchone()
        for opened in store._reader.live(store._reader.known("jobs"))
    ]
    # Killed between the commits, the job is in both files; nobody sees it twice.
    assert len([copy for copy in copies if copy]) == (2 if point == "queue.bucket:2" else 1)
    rows = await desk.rows("a")
    assert [(row.entry, number(row)) for row in rows] == [(first.entry, 1 if point == "queue.bucket:1" else 2)]
    leases = await desk.claim(10)
    assert sorted(keys(leases)) == ["a", "b"]
    assert handle(old) not in [handle(lease) for lease in leases]
    assert [await desk.done(lease) for lease in leases] == ["OK", "OK"]
    assert await desk.claim(10) == []
    desk.wait(2 * HOUR)
    assert await desk.claim(10) == []
    await tend(desk)
    assert files(tmp_path) != []
    await store.close()


@pytest.mark.case("journal-tables", 45)
async def test_killed_twice_in_the_middle_of_a_move(tmp_path, clock):
    """Whoever cleans up after the first crash is killed between the same two commits: still one job, one run."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    await desk.declare(bucket="hour")
    await desk.enq("a", data=1)
    desk.wait(HOUR)
    await desk.enq("b", data=1)
    for _ in range(2):
        run_mover(tmp_path, clock.now, "merge", "queue.bucket:2")
    leases = await desk.claim(10)
    assert sorted(keys(leases)) == ["a", "b"]
    assert [await desk.done(lease) for lease in leases] == ["OK", "OK"]
    assert await desk.claim(10) == []
    await store.close()


async def test_without_the_note_a_moved_job_would_run_twice(desk, monkeypatch):
    """The note that `moved` leaves is what keeps the older copy from coming back: seen by leaving it out."""
    await desk.declare(bucket="hour")
    await desk.enq("a")
    desk.wait(HOUR)
    whole = BucketFiles.commit
    crashed = []

    def crash(self, buckets):
        """As a crash would: the newer bucket is committed, the older is not."""
        if crashed or sum(opened.changed for opened in buckets) < 2:
            whole(self, buckets)
        else:
            crashed.append(True)
            buckets[-1].connection.execute("COMMIT")
            buckets[0].connection.execute("ROLLBACK")

    monkeypatch.setattr(BucketFiles, "commit", crash)
    monkeypatch.setattr(BucketFiles, "_finish_moves", lambda self, buckets: None)
    await desk.enq("a")
    assert crashed
    first = await desk.one()
    assert await desk.done(first) == "OK"
    assert len(await desk.claim()) == 1


async def steps_of_a_claim(folder: Path, delayed: int) -> int:
    """How many steps of SQLite's machine a claim takes beside so many delayed rows."""
    clock = VirtualClock(START)
    store = SqliteQueueStore(folder, synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    await desk.declare(bucket="none")
    for first in range(0, delayed, 1000):
        await asyncio.gather(*(desk.enq(f"later{n}", 0, proc=100 * HOUR) for n in range(first, first + 1000)))
    await desk.enq("due", 9)
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    files = store._open_files(patient=True)
    known = files.known("jobs")
    assert known is not None
    for opened in files.live(known):
        opened.connection.set_progress_handler(step, 1)
    (leases,) = store._work(files, "jobs", [Claim("w", 10)])
    assert keys(leases) == ["due"]
    files.close()
    await store.close()
    return count


@pytest.mark.case("journal-tables", 20)
async def test_delayed_rows_cost_a_claim_nothing(tmp_path):
    """One due job behind many delayed, more urgent ones: less than twice the work of an otherwise empty queue."""
    empty = await steps_of_a_claim(tmp_path / "empty", 0)
    full = await steps_of_a_claim(tmp_path / "full", 5000)
    assert 0 < full < 2 * empty


async def test_a_bucket_that_opens_while_we_wait_for_a_lock_is_not_missed(tmp_path, clock, monkeypatch):
    """We know one bucket and wait for it; meanwhile an hour begins, and somebody puts our key into the next one."""
    ours = VirtualQueue(SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock), clock)
    later = VirtualClock(clock.now + HOUR)
    theirs = VirtualQueue(SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=later), later)
    await ours.declare(bucket="hour")
    await ours.enq("other")
    put = Put(Packet(encode_key("a"), hash_key(encode_key("a")), b"x", 128, clock.now))
    theirs_files = theirs.store._open_files(patient=True)
    whole = BucketFiles.live
    raced = []

    def live(self, known):
        found = whole(self, known)
        if not raced and self is not theirs_files:
            raced.append(True)
            (answer,) = theirs.store._work(theirs_files, "jobs", [put])
            assert answer.result == "CREATED"
        return found

    monkeypatch.setattr(BucketFiles, "live", live)
    files_of_ours = ours.store._open_files(patient=True)
    (answer,) = ours.store._work(files_of_ours, "jobs", [put])
    assert (answer.result, raced) == ("MERGED", [True])
    for one in (files_of_ours, theirs_files, ours.store, theirs.store):
        closing = one.close()
        if closing is not None:
            await closing


async def test_entries_of_a_transaction_that_failed_are_not_used(desk, tmp_path, clock):
    """A block that was reserved inside a transaction goes back with it: somebody else may get the same numbers."""
    await desk.declare()
    ours, theirs = (desk.store._open_files(patient=True) for _ in range(2))
    with pytest.raises(RuntimeError), ours.transaction("jobs", clock.now):  # noqa: PT012
        ours.begin_main()
        ours.next_entry()
        raise RuntimeError("as a full disk would")
    given = [files.next_entry() for _ in range(1500) for files in (ours, theirs)]
    assert len(set(given)) == 3000
    ours.close()
    theirs.close()
