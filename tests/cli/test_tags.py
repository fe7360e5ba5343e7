"""`everlog tags …` on an embedded folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from everlog import Event, sync
from everlog.testing.replication import replicate
from tests.cli_support import Cli


def fill(cli: Cli, count: int = 4) -> None:
    with sync.connect(cli.folder) as log:
        for number in range(count):
            log.journal("orders").append(f"o-{number % 2}", [Event({"n": number}, tags={"eu"})])
        log._portal.call(replicate(log._inner))


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def filled(cli: Cli) -> Cli:
    fill(cli)
    return cli


def test_list(filled) -> None:
    (found,) = filled.lines("tags", "list")
    assert (found["tag"], found["events"], found["journals"]) == ("eu", 4, 2)
    assert filled.run("tags", "list").stdout.splitlines()[1].split()[:2] == ["4", "2"]


def test_read(filled) -> None:
    found = filled.lines("tags", "read", "eu")
    assert sorted(event["payload"]["n"] for event in found) == [0, 1, 2, 3]
    assert {(event["id"], event["number"], event["seq_nr"]) for event in found} == {
        ("o-0", 1, 1),
        ("o-0", 2, 2),
        ("o-1", 1, 1),
        ("o-1", 2, 2),
    }
    assert filled.lines("tags", "read", "eu", "--after", found[1]["offset"]) == found[2:]
    assert filled.lines("tags", "read", "eu", "--limit", "3") == found[:3]
    assert filled.lines("tags", "read", "eu", "--since", "2020-01-01") == found
    assert filled.lines("tags", "read", "none") == []
    assert found[0]["offset"] in filled.run("tags", "read", "eu").stdout


def test_bad_input(filled) -> None:
    assert filled.run("tags", "read", "eu", "--after", "cats", code=2).stderr.startswith(
        "error: an offset is a time-UUID"
    )
    assert "empty" in filled.run("tags", "read", "", code=2).stderr


def test_verify_and_drop(filled) -> None:
    assert "4 events of 2 journals" in filled.run("tags", "verify", "eu").stdout
    assert "removed 2 rows" in filled.run("tags", "drop", "eu", "--topic", "orders", "--id", "o-1").stdout
    assert "o-1, seqNr 2 is not in the view" in filled.run("tags", "verify", "eu", code=1).stdout
    assert json.loads(filled.run("tags", "drop", "eu", "--json").stdout) == {"tag": "eu", "rows": 2}
    assert filled.lines("tags", "read", "eu") == []


def test_follow(filled) -> None:
    """Events as they come, each on a line of its own, until Ctrl-C ends it as a matter of course."""
    command = [sys.executable, "-m", "everlog.cli", "--data", str(filled.folder), "tags", "follow", "eu", "--json"]
    # Whoever started the tests may have told them not to listen to Ctrl-C.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **listen) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())["payload"]["n"] for _ in range(4)]
        assert sorted(seen) == [0, 1, 2, 3]
        fill(filled, 1)
        assert json.loads(process.stdout.readline())["payload"]["n"] == 0
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        watchdog.cancel()
    assert (process.returncode, errors) == (0, "")


def test_a_mistyped_folder_is_not_made(cli) -> None:
    for command in (["list"], ["read", "eu"], ["follow", "eu"], ["rebuild"], ["verify", "eu"], ["drop", "eu"]):
        assert "there is no log" in cli.run("tags", *command, code=4).stderr
    assert not cli.folder.exists()
