"""Which events of a topic count, under random schedules: always those that the log says, however far replication is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from everlog.core.entry import Entry
from everlog.core.head import Head
from everlog.journal import verdict_reader
from everlog.journal.verdict_reader import VerdictReader
from everlog.store.port import KeyChange
from tests.models.doubles import Statement, TaskDouble
from tests.models.simulation import Setup, run, story
from tests.models.switches import CachedHeads, HeadsBeforeRows, PublishFirst, store_with

SEEDS = 80
SEEDS_IN_A_SOAK = 50_000
SEEDS_UNTIL_A_FINDING = 3_000


class Judge(VerdictReader):
    """Loads heads one after the other: the model has no event loop."""

    async def _load_some(self, ids: Sequence[str], pointer: int, first: int) -> dict:
        return {journal_id: await self._load(journal_id, pointer, first) for journal_id in ids}


SETUPS = {
    "one pipeline": Setup(verdicts=Judge),
    "two pipelines": Setup(verdicts=Judge, pipelines=2),
    "one pipeline and halts": Setup(verdicts=Judge, halts=True),
    "three pipelines and halts": Setup(verdicts=Judge, pipelines=3, halts=True),
    "kept heads and halts": Setup(verdicts=Judge, pipelines=2, halts=True, pipeline=CachedHeads),
}


def find_nothing(setup: Setup, seeds: range) -> None:
    for seed in seeds:
        world = run(seed, setup)
        if world.findings:
            pytest.fail(story(seed, setup, world), pytrace=False)


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_every_append_that_counts_is_named_once(setup) -> None:
    """Pipelines die, repeat themselves and overtake each other, the log is trimmed: what is named is what counts."""
    find_nothing(setup, range(SEEDS))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_nothing_is_found_in_many_more_runs(setup) -> None:
    find_nothing(setup, range(SEEDS, SEEDS_IN_A_SOAK))


class TrustsPointerOnly(Judge):
    """Takes no notice that a head may be ahead of the pointer."""

    async def _load(self, journal_id: str, pointer: int, first: int) -> verdict_reader._JournalState:
        state = await super()._load(journal_id, pointer, first)
        state.covered = pointer
        return state


class NoRecheck(Judge):
    """Does not look at the head again after what waits."""

    async def _recheck(self, journal_id: str, head: Head) -> None:
        pass


class NoStartCheck(Judge):
    """Does not look whether the log still holds what it judges."""

    async def _check_start(self, first: int) -> None:
        pass


class NoTail(Judge):
    """Thinks that a journal which it does not know has nothing before the page."""

    async def _fold_tail(self, *_: object) -> None:
        pass


class StoreFirst(Judge):
    """Reads verdicts before heads."""

    async def _find_states(self, journals: dict[str, list[Entry]], pointer: int, first: int) -> dict:
        found = {entry.record.offset: () for entries in journals.values() for entry in entries}
        for offset in found:
            found[offset] = await self._store.verdicts(self._topic.name, 0, [offset])
        self.early = found
        return await super()._find_states(journals, pointer, first)

    async def _add_stored(self, verdicts, entries, covered) -> None:
        store, early = self._store, getattr(self, "early", None)

        class Early:
            async def verdicts(self, topic: str, partition: int, offsets: Sequence[int]) -> list:
                return [verdict for offset in offsets for verdict in early.get(offset, ())]

        if early is not None:
            self._store, self.early = Early(), None
        try:
            await super()._add_stored(verdicts, entries, covered)
        finally:
            self._store = store


class NoVerdicts(TaskDouble):
    """Writes none."""

    def row_statements(self, key: KeyChange) -> list[Statement]:
        return [one for one in super().row_statements(key) if not one[0].startswith("write the verdict")]


SWITCHES = {
    "verdicts are stored": Setup(store=store_with(NoVerdicts), verdicts=Judge),
    "verdicts come before heads": Setup(store=store_with(HeadsBeforeRows), verdicts=Judge, halts=True),
    "the pointer comes last": Setup(pipeline=PublishFirst, verdicts=Judge),
    "a head may be ahead of the pointer": Setup(verdicts=TrustsPointerOnly),
    "verdicts are read after heads": Setup(verdicts=StoreFirst),
    "the head is read again after what waits": Setup(verdicts=NoRecheck, halts=True),
    "the log's start is read last": Setup(verdicts=NoStartCheck),
    "what lies between pointer and page is folded": Setup(verdicts=NoTail),
}


@pytest.mark.parametrize("setup", SWITCHES.values(), ids=SWITCHES.keys())
def test_without_the_rule_something_is_found(setup, record_property) -> None:
    for seed in range(SEEDS_UNTIL_A_FINDING):
        world = run(seed, replace(setup, pipelines=1 + seed % 3))
        if any(finding.startswith("events:") for finding in world.findings):
            record_property("seed", seed)
            return
    pytest.fail(f"nothing was found in {SEEDS_UNTIL_A_FINDING} runs: {setup}")


def test_the_runs_are_not_empty() -> None:
    seen: set[str] = set()
    judged = overtaken = 0
    for seed in range(30):
        world = run(seed, SETUPS["three pipelines and halts"])
        judged += world.judged
        overtaken += world.overtaken
        for offset, counted in enumerate(world.journals.counted):
            seen.update("taken up" if one != offset else "counted" for one in counted)
    assert seen == {"taken up", "counted"}
    assert judged > 100
    assert overtaken
