"""Documents over HTTP beside a naive model, step by step, with servers that are killed."""

from __future__ import annotations

import os

import pytest

from tests.documents.node_support import fleet
from tests.faults.document_steps import DocumentSteps
from tests.support import small_config


async def steps(tmp_path, *, seed: int, count: int, kills: int) -> None:
    print(f"seed {seed}")
    with fleet(small_config(tmp_path / "data"), tmp_path / "fleet", request_timeout_s=15.0) as nodes:
        run = DocumentSteps(nodes, seed)
        await run.run(count, kills=kills)
    assert min(run.done.values()) > 0
    print(dict(run.done))


async def test_some_steps(tmp_path) -> None:
    await steps(tmp_path, seed=1, count=700, kills=3)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_many_steps(tmp_path) -> None:
    await steps(tmp_path, seed=int(os.environ.get("EVERLOG_SEED", "2")), count=5000, kills=15)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 140))
async def test_very_many_steps(tmp_path, seed) -> None:
    await steps(tmp_path, seed=seed, count=50_000, kills=100)
