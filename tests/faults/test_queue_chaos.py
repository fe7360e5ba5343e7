"""Queues in a folder under chaos: see `queue_chaos`, and `queue_history` for what must hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from everlog.config import Config
from tests.faults.queue_chaos import Chaos
from tests.faults.queue_history import Finding, blocks_outlasted
from tests.faults.queue_players import MUTANTS
from tests.support import small_config


async def chaos_of(folder: Path, seconds: float, seed: int, mutant: str = "") -> tuple[Chaos, list[Finding]]:
    return await chaos_with(small_config(folder / "data"), folder, seconds, seed, mutant=mutant)


async def chaos_with(
    config: Config, folder: Path, seconds: float, seed: int, *, shards: int = 1, mutant: str = ""
) -> tuple[Chaos, list[Finding]]:
    """One run; it prints what happened, and which rules did not hold."""
    quick = msgspec.structs.replace(config.queue, grace_s=1.0, poll_interval_s=1.0)
    chaos = Chaos(msgspec.structs.replace(config, queue=quick), folder / "chaos", seed=seed, pace_s=0.6, mutant=mutant)
    findings = await chaos.run(seconds, shards=shards)
    print(chaos.summary())
    print(f"found: {dict(Counter(finding.rule for finding in findings))}")
    return chaos, findings


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seconds", "seed"),
    [
        pytest.param(20, 1, marks=pytest.mark.faults),
        *(pytest.param(300, seed, marks=pytest.mark.soak) for seed in range(2, 8)),
    ],
)
async def test_queues_survive_chaos(tmp_path, seconds, seed):
    chaos, findings = await chaos_of(tmp_path, seconds, seed)
    assert not findings, chaos.report(findings)
    assert blocks_outlasted(chaos.operations()), "no job that held up its loop for longer than a lease got through"


RULE_OF = {
    "fence": {"fence", "twice"},
    "successor": {"lost"},
    "group": {"group in flight", "group rate"},
    "schedule": {"fired twice"},
}


SHORT_S = 5
MAX_SEEDS = 8


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", ["fence", "successor", "schedule"])
async def test_short_chaos_finds_mutants(tmp_path, mutant):
    """The rule is broken in all processes; the checker names what follows from that, in the first run or the next."""
    found = set()
    for seed in range(1, 1 + MAX_SEEDS):
        _, findings = await chaos_of(tmp_path / str(seed), SHORT_S, seed, mutant)
        found |= {finding.rule for finding in findings}
        if found & RULE_OF[mutant]:
            return
    raise AssertionError(f"only {found} after {MAX_SEEDS} runs")


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_chaos_finds_mutants(tmp_path, mutant):
    _, findings = await chaos_of(tmp_path, 20, 1, mutant)
    assert {finding.rule for finding in findings} & RULE_OF[mutant], findings
