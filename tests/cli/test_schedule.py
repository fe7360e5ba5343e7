"""`everlog queue schedule`: what it prints, what it refuses."""

from __future__ import annotations

import pytest

from tests.cli_support import Cli


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "data")


def test_a_schedule_from_set_to_remove(cli):
    cli.run("queue", "put", "reports", "k")
    line = ("--cron", "30 2 * * *", "--timezone", "Europe/Berlin")
    found = cli.json("queue", "schedule", "set", "reports", "nightly", *line, "--json-payload", '{"n": 1}')
    assert (found["schedule"], found["cron"], found["timezone"]) == ("nightly", "30 2 * * *", "Europe/Berlin")
    assert (found["catch_up"], found["data"], found["priority"], found["last"]) == ("one", {"n": 1}, 128, None)
    more = ("--every", "1h", "--catch-up", "all", "--priority", "slow", "--kind", "digest")
    assert "every 1h, next 2" in cli.out("queue", "schedule", "set", "reports", "hourly", *more)
    first, second = cli.lines("queue", "schedule", "list")
    assert (first["schedule"], first["every"], first["priority"], first["catch_up"]) == ("hourly", "1h", 200, "all")
    assert (first["kind"], found["kind"]) == ("digest", None)
    assert second == found
    assert "nightly" in cli.out("queue", "schedule", "list", "reports")
    assert cli.json("queue", "schedule", "pause", "reports", "nightly")["paused"] is True
    assert "it is paused" in cli.out("queue", "schedule", "set", "reports", "nightly", *line)
    assert cli.out("queue", "schedule", "resume", "reports", "nightly") == "nightly is open\n"
    assert cli.json("queue", "schedule", "remove", "reports", "nightly")["removed"] is True
    assert [one["schedule"] for one in cli.lines("queue", "schedule", "list")] == ["hourly"]
    for command in ("pause", "resume", "remove"):
        assert cli.error("queue", "schedule", command, "reports", "nightly", code=4)["type"] == "ScheduleNotFound"


def test_what_is_wrong_is_said_and_stored_nowhere(cli):
    cli.run("queue", "put", "reports", "k")
    for words in (
        (),
        ("--every", "1h", "--cron", "@daily"),
        ("--every", "soon"),
        ("--every", "1h", "--timezone", "UTC"),
        ("--cron", "0 0 30 2 *"),
        ("--cron", "@daily", "--timezone", "Mars/Olympus"),
        ("--every", "1h", "--catch-up", "some"),
        ("--every", "1h", "--priority", "999"),
    ):
        cli.run("queue", "schedule", "set", "reports", "x", *words, code=2)
    assert cli.lines("queue", "schedule", "list") == []
    for words in (("set", "other", "x", "--every", "1h"), ("list", "other"), ("pause", "other", "x")):
        assert cli.error("queue", "schedule", *words, code=4)["type"] == "QueueNotFound"
    assert [one["queue"] for one in cli.lines("queue", "stats")] == ["reports"]
