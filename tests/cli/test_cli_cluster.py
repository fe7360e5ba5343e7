"""The command line on a cluster: the same commands, with `--config`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.config import Config, load_config
from tests.fixtures.cluster import MakeConfig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def write_toml(config: Config, path: Path) -> Path:
    """The configuration as a user would write it; strings, numbers and lists look the same in JSON."""
    plain, sections = [], []
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, dict):
            sections.append(f"[{name}]")
            sections += [f"{key} = {json.dumps(one)}" for key, one in value.items() if one not in (None, {})]
        elif value is not None:
            plain.append(f"{name} = {json.dumps(value)}")
    path.write_text("\n".join([*plain, *sections, ""]))
    assert load_config(path) == config
    return path


@pytest.fixture
def config_file(cluster_config: MakeConfig, tmp_path: Path) -> Path:
    return write_toml(cluster_config(), tmp_path / "everlog.toml")


def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everlog.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def answer(*words: object) -> Any:
    return json.loads(run(*words, "--json").stdout)


@pytest.mark.spark
async def test_replicate_and_status(config_file: Path) -> None:
    """`up --once` replicates and ends, without loading a sample; `status` says where that is."""
    config = load_config(config_file)
    async with everlog.connect(config) as log:
        await log.journal("orders").append("o-1", [Event(1), Event(2)])
    before = answer("status", "--config", config_file)
    assert (before["lag"], before["pipeline"]) == (1, None)
    assert before["where"] == config.where
    found = answer("up", "--once", "--config", config_file)
    assert (found["replicated"], found["lag"]) == (True, 0)
    assert [topic["topic"] for topic in found["topics"]] == ["orders"]
    assert set(found["services"]) == {"expiry", "queues"}
    after = answer("status", "--config", config_file)
    assert (after["pipeline"]["state"], after["pipeline"]["events"]) == ("stopped", 2)
    events = run("journal", "read", "orders", "o-1", "--json", "--config", config_file).stdout.splitlines()
    assert [json.loads(event)["payload"] for event in events] == [1, 2]


@pytest.mark.parametrize("section", ["kafka", "cassandra"])
@pytest.mark.parametrize("command", [["replicate", "--once"], ["status"]])
def test_servers_that_are_not_there(config_file: Path, tmp_path: Path, section: str, command: list[str]) -> None:
    """A clear error at once, before Spark is started."""
    config = load_config(config_file)
    assert config.kafka is not None
    assert config.cassandra is not None
    wrong = {
        "kafka": msgspec.structs.replace(config.kafka, bootstrap_servers="127.0.0.1:1", request_timeout_s=2.0),
        "cassandra": msgspec.structs.replace(config.cassandra, contact_points=("127.0.0.1:1",), request_timeout_s=2.0),
    }
    path = write_toml(msgspec.structs.replace(config, **{section: wrong[section]}), tmp_path / "wrong.toml")
    error = run(*command, "--config", path, code=75).stderr
    assert "127.0.0.1:1" in error
    assert "starting Spark" not in error
