"""Streams and requests at once: every stream gets every event once, no request fails, memory stays flat."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def program(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def resident_kib(pid: int) -> int:
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1])


def load(folder: Path, streams: int, rate: float, seconds: float) -> dict[str, Any]:
    with program("tests.faults.http_server", str(folder)) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with program("tests.faults.http_load", url, str(streams), str(rate), str(seconds)) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            before = resident_kib(server.pid)
            found: dict[str, Any] = json.loads(client.stdout.readline())
            found["grown_mib"] = round((resident_kib(server.pid) - before) / 1024, 1)
            assert server.poll() is None
    print(json.dumps(found))
    return found


def check(found: dict[str, Any]) -> None:
    assert found["failed"] == 0, found
    assert found["answered"] == found["sent"], found
    assert (found["incomplete_streams"], found["cut"], found["late"]) == ([], 0, 0), found
    assert found["events"] > 0
    assert found["checkpoints"] > 0


def test_a_few_streams_and_requests(tmp_path: Path) -> None:
    check(load(tmp_path, streams=40, rate=100, seconds=4))


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_two_hundred_streams_and_five_hundred_requests_a_second(tmp_path: Path) -> None:
    """For a minute on two cores, shared with the clients. The rate that was reached is printed, not promised."""
    found = load(tmp_path, streams=200, rate=500, seconds=60)
    check(found)
    assert found["grown_mib"] < 100, "memory must not grow with what has passed through"
