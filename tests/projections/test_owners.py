"""Two runners of one projection: who owns what, who takes over, and that a stale owner changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import OwnershipLost, Unreachable
from everlog.projections.lifecycle import Restart
from everlog.projections.port import Report
from everlog.projections.projection_id import ProjectionId
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.save_window import OffsetProgress
from everlog.projections.strategies import at_least_once, exactly_once
from everlog.testing.projection_kit import MemoryOffsets
from everlog.testing.projections import own
from tests.models.projection_fixture import ID, QUICK, Diary, Envelope, Joined, Six, declare, memory
from tests.models.projection_time import run_virtually
from tests.projections.test_runs import virtually
from tests.waiting import until

LEASE = 6.0


def keyed(handler, keys, **settings):
    """A projection with several keys; each has an endless silent source."""
    return declare(handler, {key: Six([], completes=False) for key in keys}, **settings)


async def nothing(envelope) -> None: ...


RENEWALS = ("join", "renew")
ALL = (*RENEWALS, "save", "leases", "desired", "stamp", "leave", "release", "load", "bury", "transaction")


class Cut(MemoryOffsets):
    """A store that one of its users cannot reach for a while, or only cannot renew its leases there."""

    def __init__(self, shared: MemoryOffsets, calls: tuple[str, ...] = ALL) -> None:
        self.shared = shared
        self.calls = calls
        self.cut = False

    def __getattribute__(self, name):
        if name in ("shared", "calls", "cut", "__class__", "__dict__"):
            return object.__getattribute__(self, name)
        if self.cut and name in self.calls:

            def unreachable(*_, **__):
                raise Unreachable("cut off")

            return unreachable
        return getattr(self.shared, name)


@virtually
async def test_instances_share_the_keys(store):
    projection = keyed(nothing, ["a", "b", "c", "d", "e"])
    first, second = (Runner([projection], store=store, lease_s=LEASE) for _ in range(2))
    first.start()
    await first.owns("words", 5)
    second.start()
    await second.owns("words", 2)
    await first.owns("words", 3)
    await asyncio.sleep(100)
    assert len(first.status()["words"]) == 3
    assert set(first.status()["words"]) | set(second.status()["words"]) == {"a", "b", "c", "d", "e"}
    await second.stop()
    await first.owns("words", 5)
    await first.stop()
    assert {lease.owner for lease in (await store.leases("words")).values()} == {None}


@virtually
async def test_a_dead_instance_is_replaced_within_a_lease(store):
    """It does not say good-bye; after a lease, and not before, another one has its keys."""
    for key in "abc":
        await store.take(ProjectionId("words", key), "dead", None)
    await store.join("words", "dead")
    runner = Runner([keyed(nothing, "abc")], store=store, lease_s=LEASE)
    before = asyncio.get_running_loop().time()
    runner.start()
    await asyncio.sleep(LEASE * 0.9)
    assert runner.status() == {"words": {}}
    await runner.owns("words", 3)
    assert asyncio.get_running_loop().time() - before <= LEASE * 1.5
    await runner.stop()


@virtually
async def test_an_owner_that_is_cut_off_stops_before_another_begins(store):
    """It cannot renew: its own clock tells it to stop. At no time do two handle the same key."""
    handled: list[tuple[str, int]] = []
    cut = Cut(store)

    def projection(name: str):
        async def handler(envelope: Envelope) -> None:
            handled.append((name, envelope.offset))
            await asyncio.sleep(0.5)

        endless = (Envelope(number, "x") for number in range(1, 10**9))
        strategy = at_least_once(save_every=10**6, within_s=10**6)
        return declare(handler, Six(endless), strategy=strategy, recovery=Recovery.skip())

    first = Runner([projection("first")], store=cut, lease_s=LEASE)
    second = Runner([projection("second")], store=store, lease_s=LEASE)
    first.start()
    await until(lambda: len(handled) > 3)
    second.start()
    await asyncio.sleep(LEASE)
    assert {name for name, _ in handled} == {"first"}
    cut.cut = True
    await until(lambda: handled[-1][0] == "second")
    when = len(handled)
    await asyncio.sleep(2 * LEASE)
    assert {name for name, _ in handled[when - 1 :]} == {"second"}, "the first one had stopped"
    cut.cut = False
    await asyncio.sleep(2 * LEASE)
    assert {name for name, _ in handled[when - 1 :]} == {"second"}
    await first.stop()
    await second.stop()
    assert await store.dead_letters("words") == [], "to lose a key is no fault of an envelope"


@pytest.mark.parametrize("calls", [ALL, RENEWALS], ids=["all", "renewals"])
@pytest.mark.parametrize("strategy", [at_least_once(save_every=1), exactly_once(size=100)], ids=["least", "exactly"])
@virtually
async def test_an_owner_that_was_cut_off_goes_on_if_nobody_took_over(store, strategy, calls):
    """Longer than its lease without the store, and nobody else was there: it has its key again, and loses nothing."""
    await store.view().execute("CREATE TABLE counted (nr INTEGER)")
    cut = Cut(store, calls)

    async def count(envelope: Envelope, view) -> None:
        await asyncio.sleep(0.1)
        await view.execute("INSERT INTO counted VALUES (?)", envelope.offset)

    numbers = [Envelope(number, "x") for number in range(1, 201)]
    restart = Restart(min_s=1.0, max_s=1.0)
    projection = declare(count, Six(numbers), strategy=strategy, recovery=Recovery.skip(), restart=restart)
    async with Runner([projection], store=cut, lease_s=LEASE) as runner:
        await until(lambda: (report := runner.status()["words"].get("all")) and report.handled > 5)
        cut.cut = True
        await asyncio.sleep(3 * LEASE)
        cut.cut = False
        async with asyncio.timeout(100):
            while await store.load(ID) != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    rows = await store.view().fetch("SELECT count(DISTINCT nr), count(*) FROM counted")
    assert rows[0][0] == 200
    assert await store.dead_letters("words") == []


class SlowRenewals(MemoryOffsets):
    """Renewals of a key take until the runner has given it away; the store sees them before that, or after."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.gone: Callable[[str], bool] | None = None
        self._late = late
        self.met = 0

    async def renew(self, lease, report):
        found = None if self._late else await super().renew(lease, report)
        gone = self.gone
        if gone is not None:
            self.met += 1
            await until(lambda: gone(lease.key))
        return await super().renew(lease, report) if self._late else found


@pytest.mark.parametrize("late", [False, True], ids=["kept", "given back"])
def test_a_key_may_be_given_away_while_it_is_renewed(late, caplog):
    """A new instance gets the key as soon as its last call ends, which is in the middle of a renewal."""

    async def run() -> None:
        store = SlowRenewals(late=late)
        calls: dict[str, asyncio.Event] = {}

        async def slow(key: str) -> None:
            calls[key] = asyncio.Event()
            await calls[key].wait()

        class Keyed(Six):
            def __init__(self, key: str) -> None:
                super().__init__([key], completes=False)
                self.extract_offset = lambda _: 1
                self._start_from = lambda stored, _: stored >= 1

        projection = declare(slow, {key: Keyed(key) for key in "ab"})
        first, second = (Runner([projection], store=store, lease_s=LEASE) for _ in range(2))
        first.start()
        await until(lambda: len(calls) == 2)
        second.start()
        (supervisor,) = first._supervisors.values()
        (key,) = await until(lambda: list(supervisor._giving))

        def gone(renewed: str) -> bool:
            calls[key].set()
            return renewed != key or key not in first.status()["words"]

        store.gone = gone
        await until(lambda: store.met > 1)
        await second.owns("words", 1)
        assert list(first.status()["words"]) == ["b" if key == "a" else "a"]
        store.gone = None
        for call in calls.values():
            call.set()
        await first.stop()
        await second.stop()
        await store.close()

    run_virtually(run())
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@virtually
async def test_a_stop_keeps_the_lease_of_an_open_call(store):
    """The last call takes longer than a lease: nobody else begins before it is over."""
    calls: list[str] = []

    def projection(name: str):
        async def slow(envelope: Envelope) -> None:
            calls.append(f"{name} begins {envelope.offset}")
            await asyncio.sleep(4 * LEASE)
            calls.append(f"{name} ends {envelope.offset}")

        return declare(slow, strategy=at_least_once(save_every=1))

    first, second = (Runner([projection(name)], store=store, lease_s=LEASE) for name in ("first", "second"))
    first.start()
    await until(lambda: calls)
    second.start()
    await asyncio.sleep(1)
    await first.stop()
    await until(lambda: len(calls) == 3)
    assert calls == ["first begins 1", "first ends 1", "second begins 2"]
    await second.stop()


@virtually
async def test_a_key_is_not_taken_again_while_its_last_call_is_open(store):
    """It was lost during a long call and is free again: the handler is still never called twice at a time."""
    running, most = 0, 0

    async def slow(envelope: Envelope) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(10 * LEASE)
        running -= 1

    runner = Runner([declare(slow)], store=store, lease_s=LEASE)
    runner.start()
    await until(lambda: running)
    other = await store.take(ID, "other", (await store.leases("words"))["all"])
    await asyncio.sleep(LEASE)
    assert runner.status()["words"] == {}
    await store.release(other, Report())
    await asyncio.sleep(8 * LEASE)
    assert runner.status()["words"] == {}, "the old call is open"
    await asyncio.sleep(8 * LEASE)
    assert list(runner.status()["words"]) == ["all"]
    assert most == 1
    await runner.stop()


@virtually
async def test_a_slow_handler_does_not_keep_its_own_lease_from_being_renewed(store):
    """A hundred envelopes wait, each takes half a second: they do not share one transaction of almost a minute."""
    diary = Diary()

    async def slow(envelope: Envelope, view) -> None:
        await asyncio.sleep(0.5)

    numbers = [Envelope(number, "x") for number in range(1, 101)]
    projection = declare(slow, Six(numbers), strategy=exactly_once(size=100), observers=[diary])
    async with Runner([projection], store=store, lease_s=LEASE) as runner:
        await runner.ended()
    assert await store.load(ID) == 100
    assert diary.count("failed") == 0
    assert diary.count("started") == 1
    assert len(diary.stored) == 100


@virtually
async def test_a_stale_owner_that_resumes_changes_nothing(store):
    """It was frozen inside a call while another took over and went on: its save and its rows come to nothing."""
    await store.view().execute("CREATE TABLE counted (nr INTEGER)")
    frozen, thaw = asyncio.Event(), asyncio.Event()

    async def freezes(envelope: Envelope, view) -> None:
        await view.execute("INSERT INTO counted VALUES (?)", envelope.offset)
        if envelope.offset == 4 and not frozen.is_set():
            frozen.set()

    stale = Runner([declare(freezes, strategy=exactly_once(size=1))], store=store, lease_s=LEASE)
    stale.start()
    await frozen.wait()
    lease = (await store.leases("words"))["all"]
    current = await store.take(ID, "other", lease)
    assert current is not None
    thaw.set()
    with pytest.raises(OwnershipLost):
        await store.save(lease, OffsetProgress(1))
    rows = await store.view().fetch("SELECT count(*), count(DISTINCT nr), max(nr) FROM counted")
    done = await store.load(ID)
    assert rows == [(done, done, done)], "view and offset agree"
    await stale.stop()
    rows = await store.view().fetch("SELECT count(*), count(DISTINCT nr), max(nr) FROM counted")
    assert rows == [(done, done, done)]
    assert (await store.leases("words"))["all"] == current, "and the lease is not given away"


@pytest.mark.parametrize("strategy", [at_least_once(save_every=1), exactly_once(size=1)], ids=["least", "exactly"])
@virtually
async def test_a_worker_whose_key_was_taken_ends(store, strategy):
    """It finds out by its save, long before a renewal; and it does not borrow the new owner's epoch."""
    await store.view().execute("CREATE TABLE counted (nr INTEGER)")

    async def count(envelope: Envelope, view) -> None:
        await asyncio.sleep(0.01)
        await view.execute("INSERT INTO counted VALUES (?)", envelope.offset)

    endless = (Envelope(number, "x") for number in range(1, 10**9))
    runner = Runner([declare(count, Six(endless), strategy=strategy)], store=store, lease_s=3000.0)
    runner.start()
    await until(lambda: (report := runner.status()["words"].get("all")) and report.handled > 5)
    current = await store.take(ID, "other", (await store.leases("words"))["all"])
    await asyncio.sleep(1)
    offset = await store.load(ID)
    rows = await store.view().fetch("SELECT count(*) FROM counted")
    await asyncio.sleep(100)
    assert await store.load(ID) == offset
    assert await store.view().fetch("SELECT count(*) FROM counted") == rows
    assert (await store.leases("words"))["all"] == current
    await runner.stop()
    assert (await store.leases("words"))["all"] == current


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "save", "count", "set"])), max_size=30))
def test_whatever_owners_do_the_view_is_exact_and_offsets_belong_to_the_last_owner(steps):
    """Three owners of one key, in any order, each with the lease it last had: exactly-once rows never double."""

    async def run() -> None:
        store = memory()
        try:
            await store.view().execute("CREATE TABLE counted (nr INTEGER)")
            leases, owner, expected = {}, None, 0
            for name, step in steps:
                if step == "take":
                    leases[name], owner = await own(store, ID, name), name
                elif name not in leases:
                    continue
                elif step == "set" and owner is not None:
                    await store.set_offset(ID, expected)
                    owner = None
                else:
                    stored = await store.load(ID) or 0
                    try:
                        async with store.transaction(leases[name]) as running:
                            await running.view.execute("INSERT INTO counted VALUES (?)", stored + 1)
                            running.save(OffsetProgress(stored + 1))
                        assert name == owner
                        expected += 1
                    except OwnershipLost:
                        assert name != owner
                rows = await store.view().fetch("SELECT nr FROM counted ORDER BY nr")
                assert rows == [(number,) for number in range(1, expected + 1)]
                assert (await store.load(ID) or 0) == expected
        finally:
            await store.close()

    run_virtually(run())


# Several envelopes at a time


def parallel(handler, envelopes, n, **settings):
    source = Six(envelopes, extract_journal=lambda one: one.text)
    return declare(handler, source, strategy=at_least_once(save_every=1, parallelism=n), **settings)


@virtually
async def test_parallel_over_journals_ordered_within(store):
    """Four journals, three at a time: each journal in order, never more than three calls, never two of a journal."""
    envelopes = [Envelope(number, f"j{number % 4}") for number in range(1, 41)]
    running: list[str] = []
    together: set[str] = set()
    done: dict[str, list[int]] = {}
    most = 0

    async def handler(envelope: Envelope) -> None:
        nonlocal most
        running.append(envelope.text)
        most = max(most, len(running))
        together.update(text for text in running if running.count(text) > 1)
        await asyncio.sleep(1.0 if envelope.text == "j0" else 0.1)
        running.remove(envelope.text)
        done.setdefault(envelope.text, []).append(envelope.offset)

    async with Runner([parallel(handler, envelopes, 3)], store=store) as runner:
        await runner.ended()
    assert most == 3
    assert not together, "two calls of one journal at a time"
    assert done == {f"j{nr}": [number for number in range(1, 41) if number % 4 == nr] for nr in range(4)}
    assert store.all_offsets == sorted(store.all_offsets, reverse=True)
    assert store.last_offset == 40


@virtually
async def test_only_the_contiguous_prefix_is_saved(store):
    """The first one hangs: nothing is saved, although all others are done; after a crash it would come again."""
    release, done = asyncio.Event(), []

    async def handler(envelope: Envelope) -> None:
        if envelope.offset == 1:
            await release.wait()
        done.append(envelope.offset)

    envelopes = [Envelope(number, f"j{number}") for number in range(1, 7)]
    async with Runner([parallel(handler, envelopes, 3)], store=store):
        await until(lambda: len(done) == 5)
        await asyncio.sleep(10)
        assert store.all_offsets == []
        release.set()
        await until(lambda: store.last_offset == 6)


@virtually
async def test_a_failure_among_parallel_calls_fails_the_stream(store):
    joined = Joined(fail_at=4)
    envelopes = [Envelope(number, f"j{number}") for number in range(1, 7)]
    async with Runner([parallel(joined, envelopes, 2, restart=QUICK)], store=store) as runner:
        await runner.ended()
    assert set(joined.texts) == {f"j{number}" for number in range(1, 7)}
    assert store.last_offset == 6


@virtually
async def test_what_has_no_journal_runs_alone(store):
    order: list[int] = []

    async def handler(envelope: Envelope) -> None:
        await asyncio.sleep(10 - envelope.offset)
        order.append(envelope.offset)

    source = Six(extract_journal=lambda one: None if one.offset == 3 else one.text)
    projection = declare(handler, source, strategy=at_least_once(save_every=1, parallelism=6))
    async with Runner([projection], store=store, timeout_s=None) as runner:
        await runner.ended()
    assert order.index(3) == 2
    assert store.last_offset == 6


@virtually
async def test_nothing_begins_anew_while_its_runner_stops(store):
    """One key has a call open, so the stop takes long. A command for another key, which has ended, starts nothing."""
    going, calls = asyncio.Event(), []

    async def handler(envelope: Envelope) -> None:
        calls.append(envelope.text)
        if envelope.text == "slow":
            await going.wait()

    sources = {text: Six([Envelope(1, text)], completes=False) for text in ("slow", "quick")}
    runner = Runner([declare(handler, sources)], store=store, lease_s=LEASE)
    runner.start()
    await until(lambda: len(calls) == 2)
    stopping = asyncio.create_task(runner.stop())
    await asyncio.sleep(LEASE)
    await store.set_offset(ProjectionId("words", "quick"), None)
    await asyncio.sleep(LEASE * 3)
    assert sorted(calls) == ["quick", "slow"], "the command is obeyed by whoever runs next"
    assert not stopping.done()
    going.set()
    await stopping
    assert {lease.owner for lease in (await store.leases("words")).values()} == {None}


class SlowTakes(MemoryOffsets):
    """A lease is taken back only after this condition holds."""

    def __init__(self) -> None:
        super().__init__()
        self.wait: Callable[[], bool] = lambda: True

    async def take(self, projection, owner, seen):
        await until(self.wait)
        return await super().take(projection, owner, seen)


@pytest.mark.parametrize("given", ["b", "a"], ids=["another key", "the same key"])
def test_a_key_may_be_given_away_while_keys_are_claimed_again(given):
    """Another division of the source ended, and a call of a key that is given away ends just then."""

    async def run() -> None:
        store = SlowTakes()
        async with Runner([keyed(nothing, "abc")], store=store, lease_s=LEASE) as runner:
            await runner.owns("words", 3)
            (supervisor,) = runner._supervisors.values()
            leases = await store.leases("words")
            supervisor._workers["a"].outclaimed = True
            store.wait = lambda: given not in supervisor._workers
            claims = asyncio.create_task(supervisor._claim_again(leases, "abc", dict.fromkeys("abc", runner.owner)))
            await asyncio.sleep(0)
            await supervisor._give(given)
            await claims
            found = {key: lease.owner for key, lease in (await store.leases("words")).items()}
            assert found == {key: None if key == given else runner.owner for key in "abc"}
            store.wait = lambda: True
            await runner.owns("words", 3)
        await store.close()

    run_virtually(run())
