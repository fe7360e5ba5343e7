"""Random histories: appends, deletes, purges, pipelines that die within a batch, readers that restart anywhere.

Whatever happens, every reader sees every tagged event exactly once, all in the same order, and a reader that goes on
from any of its offsets sees the rest. Where deletes propagate: what was not deleted before the reader came by.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import everlog
from everlog import Event, TaggedEvent
from everlog.config import TopicConfig
from everlog.pipeline import apply as applying
from everlog.testing.replication import replicate
from everlog.testing.tag_support import configured
from tests.support import ManualClock, examples, small_config

IDS = ("a", "b", "c", "d")
TAGS = ("t", "u")
ids = st.sampled_from(IDS)
tagged = st.lists(st.sets(st.sampled_from(TAGS)), min_size=1, max_size=3)
sizes = st.sampled_from(["minute", "hour", "day"])
shards = st.sampled_from([{}, {"t": 2}, {"t": 3, "u": 2}])


class Died(Exception):
    """The pipeline ends here."""


class Reader:
    """What one reader has seen of a tag, and where it goes on."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.seen: list[TaggedEvent] = []

    async def read(self, log: everlog.Everlog, limit: int | None = None) -> None:
        after = self.seen[-1].offset if self.seen else None
        count = 0
        async for event in log.tag(self.tag).current(after=after):
            assert not self.seen or self.seen[-1].place < event.place
            self.seen.append(event)
            count += 1
            if limit is not None and count >= limit:
                return


class Views(RuleBasedStateMachine):
    """Every rule does one thing to the folder and writes down what the views must hold."""

    propagate = False

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="everlog-test-"))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        config = small_config(self.folder)
        self.log = everlog.connect(config, clock=self.clock)
        self.run(self.log.__aenter__())
        self.topics = {"orders": TopicConfig(on_delete="propagate" if self.propagate else "keep")}
        self.tuned = configured(self.log, topics=self.topics)
        self.orders = self.log.journal("orders")
        # Per tag, all events that were ever appended, as (id, payload); and those that journals still hold.
        self.appended: dict[str, list[tuple[str, int]]] = {tag: [] for tag in TAGS}
        self.held: dict[str, dict[int, tuple[int, set[str]]]] = {key: {} for key in IDS}
        self.count = 0
        self.readers = [Reader(tag) for tag in (*TAGS, "t")]
        self.watermark = -1

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        try:
            self.finish()
        finally:
            self.run(self.log.close())
            self.run(self.loop.shutdown_asyncgens())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    @rule(key=ids, events=tagged)
    def append(self, key, events) -> None:
        numbers = range(self.count, self.count + len(events))
        self.count += len(events)
        token = self.run(
            self.orders.append(key, [Event(nr, tags=tags) for nr, tags in zip(numbers, events, strict=True)])
        )
        for seq_nr, (number, tags) in enumerate(zip(numbers, events, strict=True), token.range.first):
            self.held[key][seq_nr] = (number, set(tags))
            for tag in tags:
                self.appended[tag].append((key, number))

    @rule(key=ids, to=st.integers(1, 8))
    def delete(self, key, to) -> None:
        if self.run(self.orders.delete(key, to=to)) is not None:
            self.held[key] = {nr: found for nr, found in self.held[key].items() if nr > to}

    @rule(key=ids)
    def purge(self, key) -> None:
        self.run(self.orders.purge(key))
        self.held[key] = {}

    @rule(minutes=st.integers(1, 100))
    def wait(self, minutes) -> None:
        self.clock.advance(60 * minutes)

    @rule(bucket=sizes, shards=shards)
    def tune(self, bucket, shards) -> None:
        self.tuned = configured(self.log, topics=self.topics, bucket=bucket, shards=shards)

    @rule(batch=st.sampled_from([1, 2, 5, None]), publish=st.booleans(), start=st.sampled_from([None, None, 0, 2]))
    def replicate(self, batch, publish, start) -> None:
        self.run(replicate(self.tuned, batch=batch, publish=publish, start=start))

    @rule(at=st.integers(1, 12), batch=st.sampled_from([1, 3, None]))
    def die(self, at, batch) -> None:
        """The pipeline is killed at some step; the next one goes on."""
        left = at

        def failpoint(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died

        with mock.patch.object(applying, "failpoint", failpoint), suppress(Died):
            self.run(replicate(self.tuned, batch=batch))

    @rule(number=st.integers(0, 2), limit=st.integers(1, 5))
    def read(self, number, limit) -> None:
        self.run(self.readers[number].read(self.tuned, limit))

    @precondition(lambda self: not self.propagate)
    @rule(number=st.integers(0, 2), keep=st.integers(0, 10))
    def restart(self, number, keep) -> None:
        """A reader forgets what it did not write down."""
        del self.readers[number].seen[keep:]

    @invariant()
    def the_watermark_never_moves_back(self) -> None:
        if hasattr(self, "log"):
            found = self.run(self.log.parts.store.tags.watermark())
            assert found.tick >= self.watermark
            self.watermark = found.tick

    def finish(self) -> None:
        self.run(replicate(self.tuned))
        views = {tag: self.view(tag) for tag in TAGS}
        for tag, found in views.items():
            held = {(key, nr) for key in IDS for nr, tags in self.held[key].values() if tag in tags}
            self.check_view(tag, found, held)
        for reader in self.readers:
            before = len(reader.seen)
            self.run(reader.read(self.tuned))
            if not self.propagate:
                assert reader.seen == views[reader.tag]
                for at in range(len(reader.seen)):
                    assert self.view(reader.tag, after=reader.seen[at].offset) == reader.seen[at + 1 :]
            else:
                rest = reader.seen[before:]
                after = reader.seen[before - 1].place if before else None
                assert rest == [event for event in views[reader.tag] if after is None or event.place > after]

    def view(self, tag: str, **how) -> list[TaggedEvent]:
        async def read() -> list[TaggedEvent]:
            return [event async for event in self.log.tag(tag).current(**how)]

        return self.run(read())

    def check_view(self, tag: str, found: list[TaggedEvent], held: set[tuple[str, int]]) -> None:
        events = [(event.id, event.payload) for event in found]
        assert len(set(events)) == len(events), "an event came twice"
        if self.propagate:
            assert set(events) == held
        else:
            assert set(events) == set(self.appended[tag])
        for key in IDS:
            own = [event for event in found if event.id == key]
            right = [number for journal, number in self.appended[tag] if journal == key]
            assert [event.payload for event in own] == [number for number in right if (key, number) in set(events)]
            # The number counts everything that was ever appended with this tag.
            assert all(right[event.number - 1] == event.payload for event in own)


class PropagatingViews(Views):
    propagate = True


TestViews = Views.TestCase
TestViews.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestViews = pytest.mark.case("tags-and-projections", 18, 30, 45, 46)(TestViews)
TestPropagatingViews = PropagatingViews.TestCase
TestPropagatingViews.settings = TestViews.settings
