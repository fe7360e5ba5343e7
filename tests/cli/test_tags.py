"""`everlog tags …` on an embedded folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from everlog import Event, sync
from everlog.cli.tags import warnings_behind
from everlog.tags.tag_status import TagStatus
from everlog.testing.replication import replicate
from tests.cli_support import Cli
from tests.waiting import until


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


def test_a_view_that_is_behind_is_a_warning(filled) -> None:
    """What is missing, and how to start the pipeline, on stderr: the events on stdout stay as they are."""
    filled.run("journal", "append", "orders", "o-9", "--payload", "x", "--tag", "eu")
    for words in (("read", "eu"), ("read", "eu", "--json"), ("list",), ("verify", "eu")):
        found = filled.run("tags", *words)
        assert found.stderr.startswith("warning: views by tag are 1 record behind the log")
        assert "'everlog up' or 'everlog replicate'" in found.stderr
    assert len(filled.lines("tags", "read", "eu")) == 4


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


@contextmanager
def following(filled) -> Iterator[subprocess.Popen]:
    """`everlog tags follow eu`; ended by the caller, by `interrupt`."""
    command = [sys.executable, "-m", "everlog.cli", "--data", str(filled.folder), "tags", "follow", "eu", "--json"]
    # The tests may have been started so that they do not listen to Ctrl-C.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **listen) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        yield process
        watchdog.cancel()


def interrupt(process: subprocess.Popen) -> str:
    """End it with Ctrl-C; what it wrote to stderr."""
    os.kill(process.pid, signal.SIGINT)
    return process.communicate(timeout=60)[1]


def test_follow(filled) -> None:
    """Events as they come, each on a line of its own, until Ctrl-C ends it as a matter of course."""
    with following(filled) as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())["payload"]["n"] for _ in range(4)]
        assert sorted(seen) == [0, 1, 2, 3]
        fill(filled, 1)
        assert json.loads(process.stdout.readline())["payload"]["n"] == 0
        errors = interrupt(process)
    assert (process.returncode, errors) == (0, "")


class Changing:
    """A view whose status changes from look to look."""

    def __init__(self, *statuses: TagStatus) -> None:
        self._left = [*statuses]

    async def status(self) -> TagStatus:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


async def test_what_follows_for_long_says_each_change_once(monkeypatch, capsys) -> None:
    """The pipeline runs, ends, and comes again, while a reader or a projection goes on."""
    monkeypatch.setattr("everlog.cli.tags.LOOK_BEHIND_S", 0.001)
    fine = TagStatus(records=0, pipeline="running")
    behind = [TagStatus(records=count, pipeline="stopped", remedy="start it") for count in (1, 2, 3)]
    tag = Changing(fine, fine, *behind, fine, fine, *behind)
    async with warnings_behind(tag):
        await until(lambda: len(tag._left) == 1)
        await asyncio.sleep(0.02)
    lines = capsys.readouterr().err.splitlines()
    warning, again = behind[0].warning, "the views by tag are up to date again"
    assert lines == [f"warning: {warning}", again, f"warning: {warning}"]


def test_follow_without_a_pipeline_says_so(filled) -> None:
    """On stderr, once; the events that are there come on stdout."""
    filled.run("journal", "append", "orders", "o-9", "--payload", "x", "--tag", "eu")
    with following(filled) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        errors = interrupt(process)
    assert process.returncode == 0
    assert errors.startswith("warning: views by tag are 1 record behind the log")
    assert len(errors.splitlines()) == 1


def test_a_mistyped_folder_is_not_made(cli) -> None:
    for command in (["list"], ["read", "eu"], ["follow", "eu"], ["rebuild"], ["verify", "eu"], ["drop", "eu"]):
        assert "there is no log" in cli.run("tags", *command, code=4).stderr
    assert not cli.folder.exists()
