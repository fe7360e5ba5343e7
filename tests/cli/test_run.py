"""`everlog up` and `everlog replicate`, with a stand-in for Spark: what the command line itself adds.

The real pipeline is tested with the real Spark, in tests/pipeline.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace
from typing import ClassVar

import httpx
import pytest

from everlog.cli import run
from everlog.cli.main import main
from everlog.cli.settings import CliSettings
from everlog.client import connect
from everlog.cluster.state import _free_ports
from everlog.config import Config
from everlog.errors import MissingExtra, ReplicationFailed
from everlog.log.sqlite.log import SqliteLog
from everlog.pipeline.status import PipelineStatus, save_pipeline_status
from everlog.testing.replication import replicate
from tests.cli_support import Cli


class StandIn:
    """A pipeline that replicates when it is waited for."""

    made: ClassVar[list[StandIn]] = []
    left_out: ClassVar[dict[str, str]] = {}
    stuck = False
    on_start: str = ""
    failure: ReplicationFailed | None = None

    def __init__(self, config: Config, *, accept_loss: bool = False) -> None:
        self.config = config
        self.accept_loss = accept_loss
        self.calls: list[str] = []
        self.stopped = threading.Event()
        self.made.append(self)

    def start(self) -> None:
        if self.on_start == "fail":
            raise MissingExtra("spark")
        self.calls.append("start")
        self._save("running")
        if self.on_start:
            os.kill(os.getpid(), signal.Signals[self.on_start])

    def join(self, timeout: float | None = None) -> bool:
        return self.failure is not None or self.stopped.wait(timeout)

    def stop(self) -> None:
        self.calls.append("stop")
        self._save("stopped")
        self.stopped.set()

    def wait_until_replicated(self, timeout: float | None) -> bool:
        if self.stuck:
            return self.stopped.wait(timeout)

        async def work() -> None:
            async with connect(self.config) as log:
                await replicate(log)

        asyncio.run(work())
        return True

    def _save(self, state) -> None:
        async def work() -> None:
            async with connect(self.config) as log:
                said = PipelineStatus(state, 1, "host", 1, left_out=self.left_out, last_error="so it goes")
                await save_pipeline_status(log.parts.store, said, log.parts.clock.now_ms())

        asyncio.run(work())


@pytest.fixture
def pipelines(monkeypatch) -> list[StandIn]:
    made: list[StandIn] = []
    monkeypatch.setattr(StandIn, "made", made)
    module = SimpleNamespace(Replicator=StandIn)
    monkeypatch.setitem(sys.modules, "everlog.pipeline.replicator", module)
    return made


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


def test_up_once_loads_the_sample_replicates_it_and_says_so(cli, pipelines):
    text = cli.out("up", "--once")
    assert "loaded a sample: 3 topics, 20 journals, 200 events" in text
    assert text.splitlines()[-1].startswith("summary: 202 records in, 202 replicated, lag 0, ")
    assert pipelines[0].calls == ["start", "stop"]
    assert cli.json("snapshot", "load", "accounts", "account-1")["payload"]["balance"] > 0
    assert cli.lines("journal", "read", "orders", "order-3")[0]["seq_nr"] == 5
    assert "cart-6" not in cli.out("journal", "keys", "carts")
    assert {"eu", "us", "asia"} <= {tag for n in "123" for tag in tags(cli, f"order-{n}")}
    services = cli.json("status")["services"]
    assert services["expiry"]["runs"] == 1


def tags(cli: Cli, journal_id: str) -> set[str]:
    return {tag for event in cli.lines("journal", "read", "orders", journal_id) for tag in event["tags"]}


def test_weaknesses_of_topics_are_shown_once(cli, monkeypatch):
    async def concerns(log: SqliteLog) -> dict[str, list[str]]:
        return {f"journal-t{number}": ["it has 1 of 3 copies"] for number in range(5)} | {"journal-t1": ["x", "y"]}

    cli.run("journal", "append", "t1", "k", "--payload", "a")
    monkeypatch.setattr(SqliteLog, "concerns", concerns)
    assert cli.json("status")["concerns"]["t1"] == ["x", "y"]
    text = cli.out("status")
    assert "unsafe    t0, t2, t3 and 1 more: it has 1 of 3 copies" in text
    assert "unsafe    t1: y" in text


def test_up_again_loads_no_second_sample(cli, pipelines):
    cli.run("up", "--once")
    text = cli.out("up", "--once")
    assert "loaded" not in text
    assert "202 records in" in text


def test_a_sample_is_never_put_beside_somebody_elses_events(cli, pipelines):
    cli.run("journal", "append", "mine", "m-1", "--payload", "a")
    cli.run("up", "--once")
    assert [topic["topic"] for topic in cli.json("status")["topics"]] == ["mine"]


@pytest.mark.parametrize("once", [["--once"], []], ids=["once", "until Ctrl-C"])
def test_a_pipeline_that_cannot_go_on_ends_the_program(cli, pipelines, monkeypatch, once):
    monkeypatch.setattr(StandIn, "failure", ReplicationFailed("Spark is gone"))
    assert "Spark is gone" in cli.run("up", "--no-sample", *once, code=75).stderr
    assert pipelines[0].calls[-1] == "stop"


def test_up_without_the_sample(cli, pipelines):
    assert "summary: 0 records in, 0 replicated" in cli.out("up", "--once", "--no-sample")


def test_up_once_in_json_is_one_document(cli, pipelines):
    found = cli.json("up", "--once")
    assert (found["replicated"], found["lag"]) == (True, 0)


def test_what_up_suggests_can_be_typed(cli, pipelines, monkeypatch):
    text = cli.out("up", "--once", "--data", str(cli.folder))
    hints = [line.strip() for line in text.splitlines() if line.startswith("  everlog ")]
    assert len(hints) >= 4
    for hint in hints:
        # Those that go on until Ctrl-C have twins that end.
        words = ["read" if word == "follow" else word for word in shlex.split(hint)[1:] if word != "--watch"]
        cli.run(*words, EVERLOG_DATA="")


def test_hints_name_the_program_as_it_can_be_called_here(tmp_path, monkeypatch):
    script = tmp_path / ".venv" / "bin" / "everlog"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert run.program() == ".venv/bin/everlog"
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin")
    assert run.program() == "everlog"
    monkeypatch.setenv("PATH", "/usr/bin")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.program() == str(script)


def test_hints_lead_to_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliSettings().arguments() == ""
    assert CliSettings(data="./everlog-data").arguments() == ""
    assert CliSettings(data="other").arguments() == " --data other"
    assert CliSettings(config="e.toml", data="other").arguments() == " --config e.toml --data other"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("command", ["up", "replicate"])
def test_a_signal_ends_it_cleanly(cli, pipelines, monkeypatch, command, name):
    monkeypatch.setattr(StandIn, "on_start", name)
    result = cli.run(command)
    assert pipelines[0].calls == ["start", "stop"]
    assert "stopping" in result.stderr
    # Afterwards Ctrl-C is what it was before.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_during_once_ends_with_130(cli, pipelines, monkeypatch):
    monkeypatch.setattr(StandIn, "on_start", "SIGINT")
    monkeypatch.setattr(StandIn, "stuck", True)
    result = cli.run("up", "--once", code=130)
    assert pipelines[0].calls[0] == "start"
    assert pipelines[0].stopped.is_set()
    assert "summary: 202 records in, 0 replicated" in result.stdout


def test_once_gives_up_after_its_time(cli, pipelines, monkeypatch):
    monkeypatch.setattr(StandIn, "stuck", True)
    result = cli.run("replicate", "--once", "--timeout", "0.01", code=75)
    assert result.stderr.endswith("error: not all is replicated after 0.01 s: so it goes\n")
    cli.error("replicate", "--timeout", "1", code=2)


def test_once_fails_if_a_topic_was_left_out(cli, pipelines, monkeypatch):
    monkeypatch.setattr(StandIn, "left_out", {"journal-old": "it was made again"})
    assert "1 topics were left out: journal-old" in cli.run("replicate", "--once", code=1).stderr
    found = json.loads(cli.run("replicate", "--once", "--json", code=1).stdout)
    assert found["replicated"] is False


def test_replicate_once_replicates_what_is_there(cli, pipelines):
    cli.run("journal", "append", "orders", "o-1", "--payload", "a")
    assert cli.out("replicate", "--once").endswith("summary: 1 records in, 1 replicated, lag 0, 0/s, stopped\n")
    assert pipelines[0].accept_loss is False
    cli.run("replicate", "--once", "--accept-loss")
    assert pipelines[1].accept_loss is True


def test_a_missing_extra_is_named(cli, pipelines, monkeypatch):
    monkeypatch.setattr(StandIn, "on_start", "fail")
    error = json.loads(cli.run("up", "--json", code=1).stderr)["error"]
    assert (error["type"], error["extra"]) == ("MissingExtra", "spark")
    assert "everlog[spark]" in error["message"]
    assert "up" in main.commands


def test_the_second_signal_ends_the_program_at_once():
    """Even if something in a thread never ends."""
    program = """
import asyncio, os, signal, threading
from everlog.cli.status import stop_signals

async def main():
    with stop_signals("stopping") as stop:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "stopping\n")


def free_port() -> int:
    """Not one of those that the system hands out to whoever connects next."""
    (found,) = _free_ports(1, 1)
    return found


def asking(monkeypatch, seen: list[str], url: str, path: str = "/health/live", until: str = "") -> None:
    """A pipeline that asks the server, which starts beside it, for something, and then ends."""
    start = StandIn.start

    def ask(self: StandIn) -> None:
        while (found := answer(url + path)) is None or until not in found:
            time.sleep(0.02)
        seen.append(found)
        start(self)

    def answer(address: str) -> str | None:
        try:
            return httpx.get(address, timeout=60).text
        except httpx.ConnectError:
            return None

    monkeypatch.setattr(StandIn, "start", ask)
    monkeypatch.setattr(StandIn, "on_start", "SIGTERM")


def test_up_serves_beside_the_pipeline(cli, pipelines, monkeypatch):
    seen: list[str] = []
    url = f"http://127.0.0.1:{free_port()}"
    asking(monkeypatch, seen, url)
    assert f"serves {url}" in cli.run("up", "--no-sample", "--port", url.rpartition(":")[2]).stdout
    assert seen == ['{"status":"ok","reason":null}']
    assert pipelines[0].calls == ["start", "stop"]


def test_a_signal_that_comes_before_the_pipeline_lets_the_server_leave_in_order(cli, pipelines, monkeypatch):
    """As soon as it says where it serves, somebody may want to stop it."""
    start_server = run.start_server

    async def start_and_stop(*arguments) -> None:
        await start_server(*arguments)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # else this test would die of it
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run, "start_server", start_and_stop)
    assert "serves" in cli.run("up", "--no-sample", "--port", "0").stdout
    assert pipelines[0].calls == ["start", "stop"]
    with closing(sqlite3.connect(cli.folder / "nodes.db")) as nodes:
        assert nodes.execute("SELECT * FROM node").fetchall() == []


VIEWS = """
import everlog

@everlog.projection("counts", source=everlog.records("orders"))
async def counts(record): ...
"""


def test_up_runs_projections_too(cli, pipelines, monkeypatch, tmp_path):
    (tmp_path / "up_views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []
    url = f"http://127.0.0.1:{free_port()}"
    asking(monkeypatch, seen, url, "/projections", '"state":"running"')
    words = ["up", "--projections", "up_views:counts"]
    cli.run(*words, "--port", url.rpartition(":")[2])
    assert json.loads(seen[0])["projections"][0]["name"] == "counts"
    cli.run(*words, "--once", code=2)


def test_up_takes_another_port_unless_one_was_asked_for(cli, pipelines, monkeypatch):
    monkeypatch.setattr(StandIn, "on_start", "SIGTERM")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cli.folder.mkdir()
        (cli.folder / "everlog.toml").write_text(f"[server]\nport = {port}\n")
        found = re.search(r"serves http://127.0.0.1:(\d+)", cli.run("up", "--no-sample").stdout)
        assert found is not None
        assert int(found[1]) != port
        assert cli.error("up", "--no-sample", "--port", str(port), code=1)["type"] == "PortTaken"
    assert "serves" not in cli.run("up", "--no-sample", "--no-server").stdout


def test_up_at_a_public_address_needs_tokens(cli, pipelines):
    assert "everlog token new" in cli.error("up", "--no-sample", "--host", "0.0.0.0", code=2)["message"]
