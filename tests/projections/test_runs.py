"""The fixture of six envelopes through every strategy, with failures, restarts and stops, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools

import pytest

from everlog.errors import DiskFull, InvalidProjection
from everlog.projections.handlers import ActorHandler, Handler, StatefulHandler
from everlog.projections.lifecycle import Restart
from everlog.projections.projection import Projection, projection
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.strategies import at_least_once, at_most_once, exactly_once, flow, grouped
from tests.models.projection_fixture import (
    ENVELOPES,
    ID,
    NEVER,
    QUICK,
    Diary,
    Envelope,
    Joined,
    Six,
    declare,
    memory,
    run_to_end,
)
from tests.models.projection_time import run_virtually
from tests.waiting import until


def virtually(test):
    """Run an async test in virtual time, with a fresh store as its first argument."""

    @functools.wraps(test)
    def run(*arguments, **settings):
        async def with_store():
            store = memory()
            try:
                return await test(store, *arguments, **settings)
            finally:
                await store.close()

        run_virtually(with_store())

    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return run


ALL = "abc|def|ghi|jkl|mno|pqr"


@virtually
async def test_all_is_handled_and_the_offset_is_stored(store):
    joined = Joined()
    assert await store.load(ID) is None
    await run_to_end(declare(joined), store)
    assert (joined.result, await store.load(ID)) == (ALL, 6)
    await run_to_end(declare(joined), store)
    assert joined.result == ALL, "nothing comes twice"


@pytest.mark.parametrize(
    "settings",
    [
        {"recovery": Recovery.retry_and_fail(10**6, 1.0)},
        {"restart": Restart(min_s=1.0, max_s=1.0)},
        {"restart": Restart(min_s=1.0, max_s=1.0), "strategy": at_least_once(save_every=1)},
    ],
    ids=["attempts", "restarts", "restarts at once"],
)
def test_an_event_that_fails_for_long_is_logged_with_one_traceback(settings, caplog):
    """One traceback says where; then a line a minute says that it goes on, and how often it happened."""

    @virtually
    async def run(store) -> None:
        async with Runner([declare(Joined(fail_at=4, times=10**6), **settings)], store=store):
            await asyncio.sleep(599)

    run()
    assert len([record for record in caplog.records if record.exc_info]) == 1
    lines = [record.getMessage() for record in caplog.records]
    assert 9 <= len(lines) <= 25
    assert "cannot take jkl" in lines[-1]
    assert " times in 5" in lines[-1]


STUCK_S = 599


def tracebacks(caplog, projection: Projection) -> list[str]:
    """Run it for ten minutes; what was logged with a traceback."""

    @virtually
    async def run(store) -> None:
        async with Runner([projection], store=store):
            await asyncio.sleep(STUCK_S)

    run()
    assert len(caplog.records) <= 25 * len([record for record in caplog.records if record.exc_info])
    return [record.getMessage() for record in caplog.records if record.exc_info]


def test_events_that_are_stuck_beside_each_other_are_logged_with_a_traceback_each(caplog):
    async def fails(envelope: Envelope) -> None:
        await asyncio.sleep(0.1)
        if envelope.offset <= 3:
            raise ValueError(envelope.text)

    source = Six(completes=False, extract_journal=lambda envelope: envelope.text)
    strategy, recovery = at_least_once(parallelism=8), Recovery.retry_and_fail(10**6, 1.0)
    found = tracebacks(caplog, declare(fails, source, strategy=strategy, recovery=recovery))
    assert sorted(line.rpartition(" ")[2] for line in found) == ["abc", "def", "ghi"]


def test_an_event_that_fails_in_two_ways_is_logged_with_two_tracebacks(caplog):
    ways = itertools.cycle([ValueError, KeyError])

    async def fails(envelope: Envelope) -> None:
        raise next(ways)("poison")

    found = tracebacks(caplog, declare(fails, restart=Restart(min_s=1.0, max_s=1.0)))
    assert len(found) == 2


def test_a_group_that_grows_while_it_fails_is_logged_with_one_traceback(caplog):
    """It is formed anew at each start, and ends elsewhere: it is still stuck at the same event."""

    async def fails(envelopes: list[Envelope]) -> None:
        raise ValueError("poison")

    class Growing(Six):
        """One envelope in three seconds."""

        async def source(self, read_offset):
            now = asyncio.get_running_loop().time
            for number in itertools.count(1):
                await asyncio.sleep(max(0.0, 3.0 * number - now()))
                yield Envelope(number, "x")

    strategy = grouped(size=10**6, within_s=0.5)
    found = tracebacks(caplog, declare(fails, Growing(), strategy=strategy, restart=Restart(min_s=1.0, max_s=1.0)))
    assert len(found) == 1


# At least once


@pytest.mark.case("tags-and-projections", 52)
@pytest.mark.parametrize(
    ("window", "result"), [(1, ALL), (2, "abc|def|ghi|ghi|jkl|mno|pqr"), (100, f"abc|def|ghi|{ALL}")]
)
@virtually
async def test_at_least_once_repeats_up_to_a_window(store, window, result):
    """A failure at 4: with a window of one nothing is repeated, with two the third comes again."""
    joined = Joined(fail_at=4)
    projection = declare(joined, strategy=at_least_once(save_every=window), restart=QUICK)
    await run_to_end(projection, store)
    assert (joined.result, await store.load(ID)) == (result, 6)


@pytest.mark.parametrize(("total", "saves"), [(15, [10, 15]), (22, [10, 20, 22])])
@virtually
async def test_windows_by_count(store, total, saves):
    envelopes = [Envelope(number, "x") for number in range(1, total + 1)]
    await run_to_end(declare(Joined(), Six(envelopes), strategy=at_least_once(save_every=10)), store)
    assert store.all_offsets[::-1] == saves


@virtually
async def test_windows_by_time(store):
    """The source is silent after the third: half a second later its offset is stored."""
    diary = Diary()
    source = Six(ENVELOPES[:3], completes=False)
    loop = asyncio.get_running_loop()
    async with Runner([declare(Joined(), source, observers=[diary])], store=store):
        await until(lambda: diary.heard.count("after 3"))
        before = loop.time()
        assert store.all_offsets == []
        await until(lambda: store.all_offsets)
        assert 0.4 <= loop.time() - before <= 0.6
        assert store.all_offsets == [3]


@virtually
async def test_a_window_ends_in_time_although_a_handler_takes_long(store):
    release = asyncio.Event()

    async def slow(envelope: Envelope) -> None:
        if envelope.offset == 4:
            await release.wait()

    async with Runner([declare(slow)], store=store, timeout_s=None):
        await until(lambda: store.all_offsets)
        assert store.all_offsets == [3]
        release.set()
        await until(lambda: store.last_offset == 6)


@virtually
async def test_a_save_that_fails_while_nothing_comes_is_repeated(store):
    """The window ends by time, the store refuses once, and the source is silent: the stream still notices."""
    failures, save = [True], store.save

    async def refuse_once(lease, progress):
        if failures and failures.pop():
            raise DiskFull("no space")
        await save(lease, progress)

    store.save = refuse_once
    async with Runner([declare(Joined(), Six(completes=False), restart=QUICK)], store=store):
        await until(lambda: store.last_offset == 6)


# At most once


@pytest.mark.case("tags-and-projections", 54)
@virtually
async def test_at_most_once_loses_the_failed_one(store):
    """The offset is stored first: after the restart the fourth is not repeated."""
    joined = Joined(fail_at=4)
    await run_to_end(declare(joined, strategy=at_most_once(), restart=QUICK), store)
    assert (joined.result, await store.load(ID)) == ("abc|def|ghi|mno|pqr", 6)
    assert store.all_offsets == [6, 5, 4, 3, 2, 1]


def test_at_most_once_cannot_retry():
    with pytest.raises(InvalidProjection):
        declare(Joined(), strategy=at_most_once(), recovery=Recovery.retry_and_skip(3, 1.0))


# Recovery


@pytest.mark.case("tags-and-projections", 55)
@virtually
async def test_retry_and_skip(store):
    """Four attempts, four error callbacks, the result without the fourth, the offset at 6; a dead letter stays."""
    joined, diary = Joined(fail_at=4, times=99), Diary()
    projection = declare(joined, recovery=Recovery.retry_and_skip(3, 1.0), observers=[diary])
    before = asyncio.get_running_loop().time()
    await run_to_end(projection, store)
    assert (joined.result, await store.load(ID)) == ("abc|def|ghi|mno|pqr", 6)
    assert joined.calls == 5 + 4
    assert diary.count("error 4") == 4
    assert diary.count("after 4") == 0
    assert 3.0 <= asyncio.get_running_loop().time() - before < 3.2
    (letter,) = await store.dead_letters("words")
    assert (letter.offset, letter.manifest, letter.attempts) == ("4", "LNG", 4)
    assert letter.cause == "ValueError: cannot take jkl"
    assert letter.payload == b'[4,"jkl"]'


@pytest.mark.case("tags-and-projections", 55)
@virtually
async def test_retry_and_fail(store):
    """Four attempts, then the stream fails and starts again."""
    joined, diary = Joined(fail_at=4, times=5), Diary()
    projection = declare(
        joined,
        strategy=at_least_once(save_every=1),
        recovery=Recovery.retry_and_fail(3, 1.0),
        restart=QUICK,
        observers=[diary],
    )
    await run_to_end(projection, store)
    assert (joined.result, await store.load(ID)) == (ALL, 6)
    assert diary.count("error 4") == 5
    assert diary.count("failed") == 1
    assert await store.dead_letters("words") == []


@virtually
async def test_skip(store):
    joined = Joined(fail_at=4, times=99)
    await run_to_end(declare(joined, recovery=Recovery.skip()), store)
    assert (joined.result, joined.calls, await store.load(ID)) == ("abc|def|ghi|mno|pqr", 6, 6)


@virtually
async def test_a_skipped_last_envelope_counts_as_done(store):
    await run_to_end(declare(Joined(fail_at=6, times=99), recovery=Recovery.skip()), store)
    assert await store.load(ID) == 6


@virtually
async def test_fail_without_restarts(store):
    joined, diary = Joined(fail_at=4, times=99), Diary()
    strategy = at_least_once(save_every=1)
    runner = await run_to_end(declare(joined, strategy=strategy, restart=NEVER, observers=[diary]), store)
    assert (joined.result, await store.load(ID)) == ("abc|def|ghi", 3)
    assert [one for one in diary.heard if " " not in one] == ["started", "failed", "stopped"]
    assert runner.status() == {"words": {}}, "its keys were given back"
    (known,) = await store.known()
    assert (known.report.state, known.report.failing) == ("failed", "4")
    assert known.report.error == "ValueError: cannot take jkl"


@pytest.mark.parametrize("most", [1, 3])
@virtually
async def test_max_restarts_is_obeyed(store, most):
    diary = Diary()
    restart = Restart(min_s=1.0, max_s=1.0, max_restarts=most)
    await run_to_end(declare(Joined(fail_at=1, times=99), restart=restart, observers=[diary]), store)
    assert diary.count("started") == most + 1


# Groups


@pytest.mark.case("tags-and-projections", 56)
@virtually
async def test_groups(store):
    """Groups of three: the handler is called twice, the offsets 3 and 6 are stored."""
    joined, diary = Joined(), Diary()
    await run_to_end(declare(joined.group, strategy=grouped(size=3), observers=[diary]), store)
    assert (joined.result, joined.calls) == ("abc+def+ghi|jkl+mno+pqr", 2)
    assert store.all_offsets == [6, 3]
    assert (diary.count("before"), diary.count("after")) == (6, 6)


@pytest.mark.case("tags-and-projections", 56)
@virtually
async def test_a_skipped_group_is_dropped_as_a_whole(store):
    """A failing group with skip drops all its envelopes; each becomes a dead letter, the first one is named."""
    joined, diary = Joined(fail_at=4, times=99), Diary()
    projection = declare(joined.group, strategy=grouped(size=3), recovery=Recovery.skip(), observers=[diary])
    await run_to_end(projection, store)
    assert (joined.result, await store.load(ID)) == ("abc+def+ghi", 6)
    assert [letter.offset for letter in await store.dead_letters("words")] == ["4", "5", "6"]
    assert diary.count("error 4") == 1


@virtually
async def test_a_group_ends_by_time_and_no_group_is_empty(store):
    joined = Joined()
    source = Six(ENVELOPES[:2], completes=False)
    async with Runner([declare(joined.group, source, strategy=grouped(size=20, within_s=0.5))], store=store):
        await until(lambda: joined.texts)
        assert joined.texts == ["abc+def"]
        await asyncio.sleep(5)
    assert joined.calls == 1


# Flows


@virtually
async def test_a_flow(store):
    texts: list[str] = []

    async def upper(items):
        async for item in items:
            texts.append(item.envelope.text.upper())
            yield item

    await run_to_end(declare(upper, strategy=flow(save_every=2)), store)
    assert (texts, await store.load(ID)) == (["ABC", "DEF", "GHI", "JKL", "MNO", "PQR"], 6)
    assert store.all_offsets == [6, 4, 2]


@virtually
async def test_a_flow_may_filter_and_starts_again_as_a_whole(store):
    failures = [True]

    async def odd(items):
        async for item in items:
            if item.envelope.offset == 4 and failures and failures.pop():
                raise ValueError("no")
            if item.envelope.offset % 2:
                yield item

    await run_to_end(declare(odd, strategy=flow(save_every=1), restart=QUICK), store)
    assert store.all_offsets == [5, 3, 1], "what is filtered out is never stored by itself"


@pytest.mark.parametrize("nonsense", ["twice", "other", "backwards"])
@virtually
async def test_a_flow_that_yields_nonsense_is_named(store, nonsense):
    async def bad(items):
        kept = []
        async for item in items:
            kept.append(item)
            if len(kept) == 2:
                for one in {"twice": [kept[0], kept[0]], "other": ["what"], "backwards": kept[::-1]}[nonsense]:
                    yield one

    await run_to_end(declare(bad, strategy=flow(), restart=NEVER), store)
    assert "HandlerFailed: a flow yielded" in (await store.known())[0].report.error


# Lifecycle


@pytest.mark.case("tags-and-projections", 57)
@virtually
async def test_the_lifecycle_of_a_restart(store):
    """A failure once at 4 and a backoff of 1 s: what observers hear, and that the handler is a new one."""
    happened: list[str] = []
    failures = [True]

    class Watched(Handler):
        def __init__(self) -> None:
            happened.append("created")

        async def start(self) -> None:
            happened.append("start")

        async def stop(self) -> None:
            happened.append("stop")

        async def process(self, envelope: Envelope) -> None:
            if envelope.offset == 4 and failures and failures.pop():
                raise ValueError("no")

    diary = Diary()
    before = asyncio.get_running_loop().time()
    restart = Restart(min_s=1.0, max_s=1.0, random_factor=0.0)
    await run_to_end(declare(Watched, restart=restart, observers=[diary]), store)
    heard = [one for one in diary.heard if not one.startswith(("before", "after"))]
    assert heard == ["started", "error 4", "failed", "stopped", "started", "stopped"]
    assert happened == ["created", "start", "stop", "created", "start", "stop"]
    assert 0.99 <= asyncio.get_running_loop().time() - before < 1.2


@pytest.mark.case("tags-and-projections", 58)
@virtually
async def test_a_stop_ends_endless_retries(store):
    """A stop during retries is obeyed within one retry delay; what was handled is saved."""
    diary = Diary()
    recovery, strategy = Recovery.retry_and_fail(10**9, 1.0), at_least_once(within_s=10**6)
    projection = declare(Joined(fail_at=4, times=10**9), recovery=recovery, strategy=strategy, observers=[diary])
    runner = Runner([projection], store=store)
    runner.start()
    await until(lambda: diary.count("error 4") == 3)
    before = asyncio.get_running_loop().time()
    await runner.stop()
    assert asyncio.get_running_loop().time() - before <= 1.0
    assert diary.heard[-1] == "stopped"
    assert diary.count("failed") == 0
    assert await store.load(ID) == 3


@virtually
async def test_a_stop_during_a_backoff_does_not_wait_for_it(store):
    diary = Diary()
    projection = declare(Joined(fail_at=1, times=99), restart=Restart(min_s=1000.0, max_s=1000.0), observers=[diary])
    runner = Runner([projection], store=store)
    runner.start()
    await until(lambda: diary.count("stopped"))
    before = asyncio.get_running_loop().time()
    await runner.stop()
    assert asyncio.get_running_loop().time() - before <= 0.2
    assert diary.count("started") == 1


@virtually
async def test_a_stop_waits_for_the_open_call_and_saves_it(store):
    begun, ended = asyncio.Event(), []

    async def slow(envelope: Envelope) -> None:
        begun.set()
        await asyncio.sleep(2.0)
        ended.append(envelope.offset)

    runner = Runner([declare(slow)], store=store)
    runner.start()
    await begun.wait()
    await runner.stop()
    assert ended == [1]
    assert await store.load(ID) == 1


# Observers


@virtually
async def test_counts_of_an_observer(store):
    """Window 5, six envelopes, failures once at 3 and once at 5: 2 + 4 + 6 = 12 handled, 2 errors."""
    failing = {3, 5}
    diary = Diary()

    async def handler(envelope: Envelope) -> None:
        if envelope.offset in failing:
            failing.discard(envelope.offset)
            raise ValueError("once")

    projection = declare(handler, strategy=at_least_once(save_every=5), restart=QUICK, observers=[diary])
    await run_to_end(projection, store)
    assert (diary.count("after"), diary.count("error")) == (12, 2)
    assert diary.count("before") == 14
    assert diary.stored == [(5, 5), (6, 1)]


@virtually
async def test_an_observer_that_fails_changes_nothing(store):
    class Bad(Diary):
        def offset_progress(self, projection, envelope, envelopes):
            raise ValueError("bad observer")

        before_process = started = error = offset_progress

    joined = Joined()
    await run_to_end(declare(joined, observers=[Bad()]), store)
    assert joined.result == ALL


# Sources


@virtually
async def test_offsets_are_verified_before_they_are_handled(store):
    """What is not accepted is left out, and its offset is not stored."""
    joined = Joined()

    def verify(offset: int) -> bool:
        if offset == 3:
            raise ValueError("revoked")
        return offset != 6

    await run_to_end(declare(joined, Six(verify_offset=verify), strategy=at_least_once(save_every=1)), store)
    assert joined.result == "abc|def|jkl|mno"
    assert store.all_offsets == [5, 4, 2, 1]


@virtually
async def test_a_source_that_fails_starts_again(store):
    failures = [True]

    class Failing(Six):
        async def source(self, read_offset):
            async for envelope in super().source(read_offset):
                if envelope.offset == 4 and failures and failures.pop():
                    raise ConnectionError("the source went away")
                yield envelope

    joined = Joined()
    await run_to_end(declare(joined, Failing(), strategy=at_least_once(save_every=1), restart=QUICK), store)
    assert joined.result == ALL, "what came before the error was handled and saved"


@virtually
async def test_maps_of_offsets_are_folded_in_the_window(store):
    """Three partitions in one window: each keeps its own last place, and goes on behind it."""
    envelopes = [("t-0", 1), ("t-1", 7), ("t-0", 2), ("t-2", 3)]
    seen = []

    class Parts:
        async def source(self, read_offset):
            stored = await read_offset() or {}
            for part, offset in envelopes:
                if offset > stored.get(part, -1):
                    yield part, offset

        def extract_offset(self, envelope):
            return {envelope[0]: envelope[1]}

    async def handler(envelope) -> None:
        seen.append(envelope)

    await run_to_end(declare(handler, Parts()), store)
    assert await store.load(ID) == {"t-0": 2, "t-1": 7, "t-2": 3}
    envelopes.append(("t-1", 8))
    await run_to_end(declare(handler, Parts()), store)
    assert seen == envelopes


@pytest.mark.parametrize("bad", [None, 1.5, b"x", {}])
@virtually
async def test_an_offset_of_a_wrong_type_is_named(store, bad):
    class Bad(Six):
        def __init__(self):
            super().__init__()
            self.extract_offset = lambda _: bad

    await run_to_end(declare(Joined(), Bad(), restart=NEVER), store)
    assert "InvalidOffset" in (await store.known())[0].report.error


# Handlers


@pytest.mark.case("tags-and-projections", 62)
@pytest.mark.parametrize("recovery", [Recovery.skip(), Recovery.retry_and_skip(1, 1.0)])
@virtually
async def test_a_stateful_handler_loads_its_state_anew_after_a_failure(store, recovery):
    """The state of a failed call is not used: the initial one is loaded again, also for a retry."""
    saved: dict[str, int] = {}
    loads: list[dict[str, int]] = []

    class Count(StatefulHandler):
        async def initial_state(self) -> dict[str, int]:
            loads.append(dict(saved))
            return dict(saved)

        async def process(self, state: dict[str, int], envelope: Envelope) -> dict[str, int]:
            state[envelope.text] = envelope.offset
            if envelope.offset == 4:
                raise ValueError("after the state was changed")
            saved.clear()
            saved.update(state)
            return state

    await run_to_end(declare(Count, recovery=recovery), store)
    assert saved == {"abc": 1, "def": 2, "ghi": 3, "mno": 5, "pqr": 6}
    assert len(loads) == 1 + recovery.attempts
    assert loads[1] == {"abc": 1, "def": 2, "ghi": 3}


@virtually
async def test_an_actor_lives_through_restarts_of_the_stream(store):
    """Its state survives a failed envelope; it ends with the projection."""
    happened: list[str] = []
    failures = [True]

    class Words(ActorHandler):
        async def run(self, mailbox) -> None:
            happened.append("born")
            count = 0
            try:
                async for message in mailbox:
                    if message.envelope.offset == 4 and failures and failures.pop():
                        message.fail("not now")
                        continue
                    count += 1
                    happened.append(f"{message.envelope.text} {count}")
                    message.done()
            finally:
                happened.append("died")

    await run_to_end(declare(Words, strategy=at_least_once(save_every=1), restart=QUICK), store)
    assert happened == ["born", "abc 1", "def 2", "ghi 3", "jkl 4", "mno 5", "pqr 6", "died"]
    assert await store.load(ID) == 6


@virtually
async def test_an_actor_that_dies_is_made_anew(store):
    born = []

    class Mortal(ActorHandler):
        async def run(self, mailbox) -> None:
            born.append(1)
            async for message in mailbox:
                if message.envelope.offset == 4 and len(born) == 1:
                    raise ValueError("dead")
                message.done()

    await run_to_end(declare(Mortal, recovery=Recovery.retry_and_fail(2, 1.0)), store)
    assert len(born) == 2
    assert await store.load(ID) == 6


@pytest.mark.parametrize("kind", ["function", "actor"])
@virtually
async def test_a_handler_that_hangs_is_a_failure(store, kind):
    hangs = [True]

    async def function(envelope: Envelope) -> None:
        if envelope.offset == 4 and hangs and hangs.pop():
            await asyncio.get_running_loop().create_future()

    class Actor(ActorHandler):
        async def run(self, mailbox) -> None:
            async for message in mailbox:
                await function(message.envelope)
                message.done()

    diary = Diary()
    handler = {"function": function, "actor": Actor}[kind]
    projection = declare(handler, timeout_s=5.0, recovery=Recovery.retry_and_fail(1, 1.0), observers=[diary])
    await run_to_end(projection, store)
    assert diary.count("error 4") == 1
    assert await store.load(ID) == 6


@virtually
async def test_a_silent_source_is_no_call_that_hangs(store):
    """The limit is on calls: between two of them any time may pass."""

    class Silent(Six):
        async def source(self, read_offset):
            for envelope in ENVELOPES:
                yield envelope
                await asyncio.sleep(20.0)

    joined, diary = Joined(), Diary()
    await run_to_end(declare(joined, Silent(), timeout_s=5.0, observers=[diary]), store)
    assert (joined.result, diary.count("started"), diary.count("error")) == (ALL, 1, 0)


@pytest.mark.parametrize("parallelism", [1, 3])
@virtually
async def test_the_time_of_each_call_counts_by_itself(store, parallelism):
    """Each call takes more than half of the limit: none is ended for the time that others took before it."""
    diary = Diary()

    async def slow(envelope: Envelope) -> None:
        await asyncio.sleep(3.0)

    source = Six(extract_journal=lambda one: one.text)
    strategy = at_least_once(parallelism=parallelism)
    await run_to_end(declare(slow, source, strategy=strategy, timeout_s=5.0, observers=[diary]), store)
    assert diary.count("error") == 0
    assert await store.load(ID) == 6


@virtually
async def test_a_handler_whose_own_task_was_cancelled_is_a_failure(store):
    """It does not look like somebody wanted to end the projection."""
    once = [True]

    async def handler(envelope: Envelope) -> None:
        if once and once.pop():
            waiting = asyncio.create_task(asyncio.sleep(10))
            asyncio.get_running_loop().call_later(1, waiting.cancel)
            await waiting

    diary = Diary()
    for timeout in (None, 100.0):
        await run_to_end(declare(handler, restart=QUICK, observers=[diary]), store, timeout_s=timeout)
    assert diary.count("error 1") == 1
    assert await store.load(ID) == 6


@virtually
async def test_what_a_handler_returns_is_checked(store):
    async def nonsense(envelope: Envelope) -> int:
        return 7

    class Forgetful(StatefulHandler):
        async def initial_state(self):
            return {}

        async def process(self, state, envelope):
            pass

    for handler in (nonsense, Forgetful):
        await run_to_end(declare(handler, restart=NEVER), store)
        assert "HandlerFailed" in (await store.known())[0].report.error


@pytest.mark.parametrize("recovery", [Recovery.fail(), Recovery.retry_and_fail(2, 0.01)])
async def test_a_plain_function_runs_in_a_thread(recovery):
    """It may block without stopping others; one that takes too long is not called again before it is back."""
    import threading

    release, calls = threading.Event(), []

    def plain(envelope: Envelope) -> None:
        calls.append(envelope.offset)
        if envelope.offset == 2 and not release.is_set():
            release.wait(120)

    store = memory()
    diary = Diary()
    strategy = at_least_once(save_every=1)
    projection = declare(plain, strategy=strategy, timeout_s=0.25, restart=QUICK, recovery=recovery, observers=[diary])
    async with Runner([projection], store=store):
        await until(lambda: diary.count("failed") > 3)
        assert calls.count(2) == 1, "its call is still open"
        release.set()
        await until(lambda: store.last_offset == 6)
    # On a busy machine another call may take too long as well, and comes again when it is back.
    assert list(dict.fromkeys(calls)) == [1, 2, 3, 4, 5, 6]
    assert calls.count(2) >= 2
    assert calls == sorted(calls)
    await store.close()


@virtually
async def test_one_handler_that_fails_does_not_stop_another_projection(store):
    joined = Joined()
    bad = Projection("bad", source=Six(), handler=Joined(fail_at=1, times=10**9))
    async with Runner([bad, declare(joined)], store=store):
        await until(lambda: store.last_offset == 6)
    assert joined.result == ALL


# Declarations


def test_projections_are_declared_by_decorator():
    @projection("words", source=Six(), strategy=at_least_once(save_every=7))
    async def words(envelope):
        return envelope

    assert isinstance(words, Projection)
    assert (words.name, words.strategy.save_every) == ("words", 7)

    @projection("words", source={"a": Six(), "b": Six()})
    class Words(Handler):
        async def process(self, envelope): ...

    assert Words.shape.make is Words.handler


@virtually
async def test_a_factory_makes_a_handler_per_start(store):
    made = []

    def factory():
        made.append(Joined(fail_at=4 if not made else None))
        return made[-1]

    await run_to_end(declare(factory, factory=True, restart=QUICK), store)
    assert len(made) == 2
    assert made[1].result == ALL


async def two(envelope, view): ...
async def generator(envelope):
    yield envelope


class Stateful(StatefulHandler):
    async def initial_state(self): ...
    async def process(self, state, envelope): ...


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "  "},
        {"handler": 7},
        {"handler": lambda: None},
        {"handler": lambda a, b, c: None},
        {"handler": lambda envelope, view: None},
        {"handler": generator},
        {"strategy": flow()},
        {"strategy": 7},
        {"strategy": exactly_once()},
        {"handler": two, "strategy": exactly_once(), "view": object()},
        {"handler": Stateful, "strategy": at_least_once(parallelism=2)},
        {"source": object()},
        {"source": {}},
        {"source": {"": Six()}},
    ],
)
def test_declarations_that_cannot_work_are_refused(bad):
    with pytest.raises(InvalidProjection):
        Projection(**{"name": "words", "source": Six(), "handler": Joined(), **bad})


def test_numbers_of_strategies_are_checked():
    for make in (
        lambda: at_least_once(save_every=0),
        lambda: at_least_once(within_s=0),
        lambda: at_least_once(parallelism=0),
        lambda: grouped(size=0),
        lambda: flow(save_every=-1),
        lambda: exactly_once(size=0),
    ):
        with pytest.raises(InvalidProjection):
            make()


def test_names_are_given_once():
    with pytest.raises(InvalidProjection):
        Runner([declare(Joined()), declare(Joined())], store=memory())


async def test_a_store_without_views_is_noticed_at_once():
    class Viewless(type(memory())):
        has_views = False

    store = Viewless()
    for strategy in (at_least_once(), exactly_once()):
        with pytest.raises(InvalidProjection, match="no tables for views"):
            Runner([declare(two, strategy=strategy)], store=store)
    Runner([declare(two, view=object())], store=store)
    await store.close()


# Stops


@pytest.mark.parametrize("steps", range(1, 8))
@virtually
async def test_a_stop_that_is_cancelled_leaves_nothing_running(store, steps):
    """However far the stop has come when its caller is cancelled: no instance goes on with no owner."""
    async with contextlib.AsyncExitStack() as stack:
        runner = Runner([declare(Joined(), Six(completes=False))], store=store)
        await stack.enter_async_context(runner)
        await until(lambda: store.last_offset == 6)
        leaving = asyncio.create_task(stack.pop_all().aclose())
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
    running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert running == []
