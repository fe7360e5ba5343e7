"""Kill -9 of appending processes: what was acknowledged is there, once and in order; the rest at most once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import everlog
from tests.faults.history import check, load


def kill_one(folder: Path, name: str, chance: random.Random) -> int:
    """Start two appenders on the same keys, kill one at a random moment of its work, then the other."""
    command = [sys.executable, "-m", "tests.faults.appender", str(folder)]
    processes = [subprocess.Popen([*command, f"{name}{side}"], stdout=subprocess.PIPE) for side in "ab"]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        histories = [folder / f"history-{name}{side}.jsonl" for side in "ab"]
        wanted = chance.randint(1, 4000)
        deadline = time.monotonic() + 60
        while sum(history.stat().st_size for history in histories) < wanted and time.monotonic() < deadline:
            pass
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    return sum(len(load(history)) for history in histories)


async def final_values(folder: Path) -> dict[str, list[str]]:
    async with everlog.connect(folder) as log:
        journal = log.journal("faults")
        return {key: [event.payload async for event in journal.read(key)] async for key in journal.keys()}  # noqa: SIM118


def whole_history(folder: Path) -> list[dict[str, Any]]:
    return [operation for path in sorted(folder.glob("history-*.jsonl")) for operation in load(path)]


async def run(folder: Path, kills: int) -> None:
    chance = random.Random(kills)
    operations = sum(kill_one(folder, f"{number}-", chance) for number in range(kills))
    history = whole_history(folder)
    assert len(history) == operations > kills
    findings = check(history, await final_values(folder))
    assert not findings, findings


async def test_a_few_kills(tmp_path: Path) -> None:
    """No acknowledged append is lost and none is doubled when appending processes are killed."""
    await run(tmp_path, 4)


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_fifty_kills(tmp_path: Path) -> None:
    """The same, fifty times over on one folder, two processes at a time."""
    await run(tmp_path, 50)


def test_the_checker_finds_what_it_is_for() -> None:
    """A checker that finds nothing wrong must be able to: each kind of damage is noticed."""
    ok = {"op": "append", "key": "k", "outcome": "ok"}
    history = [ok | {"value": "a", "seq_nr": 1}, ok | {"value": "b", "seq_nr": 2}]
    assert not check(history, {"k": ["a", "b"]})
    assert check(history, {"k": ["a"]}).lost == ["k: b"]
    assert check(history, {"k": ["a", "b", "b"]}).duplicated == ["k: b"]
    assert check(history, {"k": ["b", "a"]}).reordered == ["k"]
    assert check(history, {"k": ["a", "b", "c"]}).phantom == ["k: c"]
    assert check([*history, {"op": "read", "key": "k", "values": ["a"]}], {"k": ["a", "b"]}).stale == ["k: ['b']"]
