"""Commands: set, clear, pause, resume, skip, replay of dead letters; with a runner and without, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from everlog.projections.port import Report
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.save_window import OffsetProgress
from everlog.projections.strategies import at_least_once, at_most_once, exactly_once, grouped
from everlog.testing.projections import own
from tests.models.projection_fixture import ENVELOPES, ID, NEVER, Diary, Joined, Six, declare
from tests.projections.test_runs import ALL, virtually
from tests.waiting import until


def live(handler, **settings):
    """The six envelopes of a source that goes on; a save per envelope."""
    return declare(handler, Six(completes=False), **{"strategy": at_least_once(save_every=1), **settings})


def report(runner) -> Report:
    """What the one instance says of itself; nothing yet before it is there."""
    return runner.status()["words"].get("all", Report())


async def at_six(store) -> None:
    await until(lambda: store.last_offset == 6)


@pytest.mark.case("tags-and-projections", 59)
@virtually
async def test_an_offset_that_is_set_is_followed(store):
    """At 6, set to 3: 4, 5 and 6 are handled again. Cleared: all of them."""
    joined = Joined()
    async with Runner([live(joined)], store=store):
        await at_six(store)
        for offset, repeated in ((3, "jkl|mno|pqr"), (None, ALL)):
            joined.texts.clear()
            store.all_offsets.clear()
            await store.set_offset(ID, offset)
            await at_six(store)
            assert joined.result == repeated


@pytest.mark.case("tags-and-projections", 59)
@virtually
async def test_a_paused_projection_does_nothing_until_it_is_resumed(store):
    """Pause, then clear: nothing comes. Resume: all comes again."""
    joined, diary = Joined(), Diary()
    async with Runner([live(joined, observers=[diary])], store=store) as runner:
        await at_six(store)
        await store.pause(ID, True)
        await until(lambda: report(runner).state == "paused")
        joined.texts.clear()
        store.all_offsets.clear()
        await store.set_offset(ID, None)
        await asyncio.sleep(100)
        assert joined.texts == []
        assert await store.load(ID) is None
        await store.pause(ID, False)
        await at_six(store)
        assert joined.result == ALL
        assert diary.count("failed") == 0


@virtually
async def test_pausing_saves_what_was_handled(store):
    """The window is flushed first: nothing is repeated after the pause."""
    joined = Joined()
    async with Runner([live(joined, strategy=at_least_once(save_every=100, within_s=1000.0))], store=store) as runner:
        await until(lambda: len(joined.texts) == 6)
        await store.pause(ID, True)
        await until(lambda: report(runner).state == "paused")
        assert await store.load(ID) == 6


@virtually
async def test_commands_work_while_nobody_runs(store):
    await store.save(await own(store, ID), OffsetProgress(6))
    await store.pause(ID, True)
    await store.set_offset(ID, 4)
    await store.release((await store.leases("words"))["all"], Report())
    store.all_offsets.clear()
    joined = Joined()
    async with Runner([live(joined)], store=store):
        await asyncio.sleep(100)
        assert joined.texts == []
        await store.pause(ID, False)
        await at_six(store)
    assert joined.result == "mno|pqr"


@virtually
async def test_other_keys_of_the_name_are_not_touched(store):
    joined = {key: Joined() for key in "ab"}

    class Keyed(Six):
        def __init__(self, key):
            super().__init__([(key, one) for one in ENVELOPES], completes=False)
            self.extract_offset = lambda envelope: envelope[1].offset
            self._start_from = lambda stored, envelope: envelope[1].offset <= stored

    async def handler(envelope) -> None:
        await joined[envelope[0]](envelope[1])

    projection = declare(handler, {key: Keyed(key) for key in "ab"}, strategy=at_least_once(save_every=1))
    async with Runner([projection], store=store):
        await until(lambda: len(store.all_offsets) == 12)
        await store.set_offset(type(ID)("words", "a"), 3)
        await until(lambda: len(store.all_offsets) == 15)
    assert joined["a"].result == f"{ALL}|jkl|mno|pqr"
    assert joined["b"].result == ALL


STRATEGIES = [at_least_once(save_every=1), at_most_once(), exactly_once()]


class Fixable:
    """A handler with a bug that can be fixed while it runs."""

    def __init__(self) -> None:
        self.broken = True
        self.texts: list[str] = []

    async def plain(self, envelope) -> None:
        if self.broken and envelope.offset == 4:
            raise ValueError("a bug")
        self.texts.append(envelope.text)

    async def with_view(self, envelope, view) -> None:
        await view.execute("INSERT INTO texts VALUES (?, ?)", envelope.offset, envelope.text)
        await self.plain(envelope)

    async def group(self, envelopes) -> None:
        for envelope in envelopes:
            await self.plain(envelope)

    def for_(self, strategy):
        return self.with_view if strategy == exactly_once() else self.plain


async def make_texts(store) -> None:
    await store.view().execute("CREATE TABLE texts (nr INTEGER, text TEXT)")


@pytest.mark.parametrize("strategy", [STRATEGIES[0], STRATEGIES[2]], ids=lambda one: type(one).__name__)
@virtually
async def test_the_failing_envelope_is_skipped_by_a_command(store, strategy):
    """It blocks the stream until somebody says skip; it becomes a dead letter, and the stream goes on."""
    await make_texts(store)
    handler = Fixable()
    recovery = Recovery.retry_and_fail(10**6, 1.0)
    async with Runner([live(handler.for_(strategy), strategy=strategy, recovery=recovery)], store=store) as runner:
        await until(lambda: report(runner).failing == "4")
        assert report(runner).attempts >= 1
        await store.skip(ID, "4")
        await until(lambda: handler.texts[-1] == "pqr")
        await until(lambda: report(runner).skipped == 1)
    assert handler.texts == ["abc", "def", "ghi", "mno", "pqr"]
    (letter,) = await store.dead_letters("words")
    assert (letter.offset, letter.cause) == ("4", "skipped by a command")
    assert letter.attempts >= 1
    assert (await store.desired("words"))["all"].skips == (), "once"
    assert await store.load(ID) == 6


@pytest.mark.parametrize("offset", ["4", "5", "6"])
@virtually
async def test_a_skip_leaves_out_one_event_of_a_group(store, offset):
    """Whichever place in its group the event has: it becomes a dead letter, and the others are handled."""
    joined = Joined(fail_at=int(offset), times=10**6)
    projection = live(joined.group, strategy=grouped(size=3), recovery=Recovery.retry_and_fail(10**6, 1.0))
    async with Runner([projection], store=store) as runner:
        await until(lambda: report(runner).failing == "4..6")
        await store.skip(ID, offset)
        await at_six(store)
        assert report(runner).failing is None
        assert report(runner).skipped == 1
    rest = "+".join(one.text for one in ENVELOPES[3:] if str(one.offset) != offset)
    assert joined.result == f"abc+def+ghi|{rest}"
    assert [letter.offset for letter in await store.dead_letters("words")] == [offset]
    assert (await store.desired("words"))["all"].skips == ()


@virtually
async def test_a_skip_leaves_out_a_group_as_it_is_named(store):
    joined = Joined(fail_at=5, times=10**6)
    async with Runner([live(joined.group, strategy=grouped(size=3))], store=store) as runner:
        await until(lambda: report(runner).failing == "4..6")
        await store.skip(ID, "4..6")
        await at_six(store)
    assert joined.result == "abc+def+ghi"
    assert [letter.offset for letter in await store.dead_letters("words")] == ["4", "5", "6"]


@virtually
async def test_a_skip_reaches_a_stream_in_backoff(store):
    handler = Fixable()
    async with Runner([live(handler.plain)], store=store) as runner:
        await until(lambda: report(runner).state == "backoff")
        await store.skip(ID, "4")
        await at_six(store)
    assert handler.texts == ["abc", "def", "ghi", "mno", "pqr"]


@pytest.mark.parametrize("strategy", [*STRATEGIES, grouped(size=1)], ids=lambda one: type(one).__name__)
@virtually
async def test_a_poison_event_ends_well(store, strategy):
    """Skip, dead letter, fix, replay: the view ends right."""
    await make_texts(store)
    handler = Fixable()
    function = handler.group if isinstance(strategy, type(grouped())) else handler.for_(strategy)
    async with Runner([live(function, strategy=strategy, recovery=Recovery.skip())], store=store) as runner:
        await until(lambda: handler.texts[-1:] == ["pqr"])
        await until(lambda: report(runner).skipped == 1)
        assert await store.request_replay(ID) == 1
        await asyncio.sleep(10)
        (letter,) = await store.dead_letters("words")
        assert (letter.attempts, letter.requested) == (2, False), "it failed again, and stays"
        handler.broken = False
        assert await store.request_replay(ID) == 1
        await until(lambda: handler.texts[-1] == "jkl")
        await asyncio.sleep(1)
    assert await store.dead_letters("words") == []
    assert handler.texts == ["abc", "def", "ghi", "mno", "pqr", "jkl"]
    assert await store.load(ID) == 6
    if strategy == exactly_once():
        rows = await store.view().fetch("SELECT nr, text FROM texts ORDER BY nr")
        assert rows == [tuple(one) for one in ENVELOPES], "the failed attempts left nothing"


@virtually
async def test_an_envelope_that_cannot_be_written_down_is_a_dead_letter_too(store):
    class Strange(Six):
        def __init__(self):
            super().__init__([object(), object()])
            self.extract_offset = lambda _: 1

    async def fails(envelope) -> None:
        raise ValueError("no")

    async with Runner([declare(fails, Strange(), recovery=Recovery.skip())], store=store) as runner:
        await runner.ended()
    (letter,) = await store.dead_letters("words")
    assert letter.payload is None
    assert await store.request_replay(ID) == 0


@virtually
async def test_an_instance_that_gave_up_begins_anew_by_a_command(store):
    handler = Fixable()
    async with Runner([live(handler.plain, restart=NEVER)], store=store) as runner:
        await until(lambda: report(runner).state == "failed")
        handler.broken = False
        await store.pause(ID, False)
        await at_six(store)
    assert handler.texts == ["abc", "def", "ghi", "jkl", "mno", "pqr"]
