"""Several clients and processes on the same journals answer as a naive model does, step by step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from everlog.config import Config, LogConfig
from everlog.core import fold
from everlog.core.head import Head, exists, life_of
from everlog.journal import expiry, writer
from everlog.journal.reader import Pin
from everlog.journal.snapshots import LocalSnapshots
from everlog.store.port import Snapshot
from tests.conftest import Pipeline
from tests.journal.differential import Differential, clients_of
from tests.journal.journal_model import SLOTS
from tests.models.switches import EveryLife
from tests.support import examples, small_config

CALLS = 2_000
CALLS_IN_A_SOAK = 200_000
SEEDS = 5
CALLS_UNTIL_A_FINDING = 3_000
# What must have happened in so many calls, about half of what usually does: or the comparison compares nothing.
MIN_HAPPENED = {
    "append: done": 300,
    "append: Conflict": 25,
    "append: OutcomeDeleted": 10,
    "at once: as asked": 40,
    "at once: the other way round": 2,
    "consume: all": 15,
    "consume: Overtaken": 5,
    "delete: done": 40,
    "expired": 6,
    "purge: done": 30,
    "save: done": 20,
    "save: Conflict": 10,
    "trimmed": 300,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Rows of a purged life are reported by the reader; here they are everyday life."""
    log = logging.getLogger("everlog.journal")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


def config_of(folder) -> Config:
    config = small_config(folder / "data", max_snapshots=SLOTS)
    return msgspec.structs.replace(config, log=LogConfig(partitions=2, synchronous="NORMAL", retention_hours=1))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_answer_is_the_models(tmp_path, seed) -> None:
    """Appends of all kinds, reads, deletes, purges, snapshots, recoveries under way, expiry, retention: in one folder,
    from two open logs, a client of a server and another process, with the pipeline's steps in between."""
    async with clients_of(config_of(tmp_path), tmp_path) as (log, clients):
        run = Differential(seed, log, clients)
        await run.run(CALLS)
        seldom = {what: run.happened[what] for what, least in MIN_HAPPENED.items() if run.happened[what] < least}
        assert not seldom, f"seed {seed}"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1000, 1000 + examples(20)))
async def test_every_answer_is_the_models_for_long(tmp_path, seed) -> None:
    async with clients_of(config_of(tmp_path), tmp_path) as (log, clients):
        await Differential(seed, log, clients).run(CALLS_IN_A_SOAK)


async def every_snapshot(self: LocalSnapshots, journal_id: str, head: Head | None, criteria: Any) -> list[Snapshot]:
    """Those of all lives."""
    if not exists(head):
        return []
    stored = await self._journal.parts.store.snapshots(self._journal.log_name, journal_id)
    return sorted(stored.values(), key=lambda one: one.seq_nr)


# A rule of the life-cycle, and the code without it.
BROKEN: dict[str, tuple[tuple[Any, ...], str, Any]] = {
    "an expectation holds in its own life": ((fold,), "life_of", lambda head: EveryLife()),
    "a bare number is sent again": ((writer,), "MAX_LIFE_RETRIES", 0),
    "a recovery is of one life": ((Pin,), "holds", lambda pin, head, first: head is not None),
    "a recovery misses what is deleted": ((Pin,), "holds", lambda pin, head, first: pin.life == life_of(head)),
    "a recovery misses nothing else": (
        (Pin,),
        "holds",
        lambda pin, head, first: pin.life == life_of(head) and pin.delete_to == head.delete_to,
    ),
    "a repeated append is searched in its place": ((writer,), "_is_gone", lambda head, expected, first: False),
    "a snapshot is of its life": ((LocalSnapshots,), "_fitting", every_snapshot),
    "the last append says when": ((fold, expiry), "has_expired", lambda head, purge: head.expire_at is not None),
    "expiry is to the millisecond": (
        (fold, expiry),
        "has_expired",
        lambda head, purge: head.expire_on is not None and head.expire_on <= purge.expire_on,
    ),
}


@pytest.mark.parametrize(("where", "name", "instead"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_rule_is_found(tmp_path, monkeypatch, where, name, instead) -> None:
    """The comparison is worth something: each rule, left out, gives a wrong answer soon.

    Without the other process, in which the rule would still hold.
    """
    for one in where:
        monkeypatch.setattr(one, name, instead)
    async with clients_of(config_of(tmp_path), tmp_path, process=False) as (log, clients):
        with pytest.raises(AssertionError, match="seed"):
            await Differential(7, log, clients).run(CALLS_UNTIL_A_FINDING)


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_every_answer_is_the_models_beside_the_pipeline(tmp_path, pipeline: Pipeline) -> None:
    """The same with the real pipeline on Spark, which replicates whatever is there while the clients go on."""
    config = config_of(tmp_path)
    async with clients_of(config, tmp_path) as (log, clients):
        await clients[0].do({"do": "mark", "key": "a"})
        with pipeline(config) as running:

            async def upkeep(random: Random) -> None:
                if random.random() < 0.1:
                    assert await asyncio.to_thread(running.wait_until_replicated, 120), running.status
                    run.model.replicated()

            run = Differential(11, log, clients, upkeep=upkeep)
            await run.run(CALLS)
            assert await asyncio.to_thread(running.wait_until_replicated, 120), running.status
            await run.run(50)
