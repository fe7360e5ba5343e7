"""Queues on Cassandra under chaos: as `test_queue_chaos`, and their owners are killed and stopped, too."""

from __future__ import annotations

import pytest

from tests.faults.queue_players import MUTANTS
from tests.faults.test_queue_chaos import RULE_OF, chaos_with

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("seconds", "seed", "shards"),
    [
        pytest.param(20, 1, 2, marks=pytest.mark.faults),
        *(pytest.param(300, seed, shards, marks=pytest.mark.soak) for seed, shards in ((2, 1), (3, 4), (4, 2))),
    ],
)
async def test_queues_on_a_cluster_survive_chaos(cluster_config, tmp_path, seconds, seed, shards):
    chaos, findings = await chaos_with(cluster_config(), tmp_path, seconds, seed, shards=shards)
    assert not findings, chaos.report(findings)


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_chaos_on_a_cluster_finds_mutants(cluster_config, tmp_path, mutant):
    """The rule is broken in all processes, whichever of them owns a queue."""
    _, findings = await chaos_with(cluster_config(), tmp_path, 20, 1, mutant=mutant)
    assert {finding.rule for finding in findings} & RULE_OF[mutant], findings
