"""`everlog snapshot`, `quarantine`, `expire` and `status`."""

from __future__ import annotations

import base64
import os
import signal

import pytest

from everlog.client import LocalEverlog
from everlog.pipeline.phases import SlowKey
from everlog.pipeline.status import CycleStatus, PipelineStatus, save_pipeline_status
from everlog.testing.replication import replicate
from tests.cli_support import Cli
from tests.http_support import server_in_thread
from tests.support import small_config


@pytest.fixture
def cli(tmp_path) -> Cli:
    """accounts/a-1 with three events."""
    cli = Cli(tmp_path / "data")
    for number in range(3):
        cli.run("journal", "append", "accounts", "a-1", "--json-payload", str(number))
    return cli


# Snapshots


def test_a_state_is_saved_and_loaded(cli):
    words = ("snapshot", "save", "accounts", "a-1", "--seq-nr", "2", "--json-payload", '{"balance":7}')
    assert cli.json(*words, "--metadata", '{"by":"me"}') == {"topic": "accounts", "id": "a-1", "seq_nr": 2}
    found = cli.json("snapshot", "load", "accounts", "a-1")
    assert (found["seq_nr"], found["payload"], found["metadata"]) == (2, {"balance": 7}, {"by": "me"})
    assert cli.out("snapshot", "load", "accounts", "a-1") == '{"balance":7}\n'


def test_the_newest_state_counts_unless_an_older_one_is_asked_for(cli):
    for seq_nr in (1, 3, 2):
        cli.run("snapshot", "save", "accounts", "a-1", "--seq-nr", str(seq_nr), "--payload", f"state {seq_nr}")
    assert cli.json("snapshot", "load", "accounts", "a-1")["payload"] == "state 3"
    assert cli.json("snapshot", "load", "accounts", "a-1", "--max-seq-nr", "2")["payload"] == "state 2"
    assert [one["seq_nr"] for one in cli.lines("snapshot", "list", "accounts", "a-1")] == [1, 2, 3]
    assert cli.out("snapshot", "list", "accounts", "a-1").splitlines()[1].split()[0] == "1"


def test_a_binary_state_is_written_as_it_is(cli):
    cli.run("snapshot", "save", "accounts", "a-1", "--seq-nr", "1", "-", stdin=b"\xff\x00\n")
    assert cli.run("snapshot", "load", "accounts", "a-1").stdout_bytes == b"\xff\x00\n"
    assert base64.b64decode(cli.json("snapshot", "load", "accounts", "a-1")["payload"]) == b"\xff\x00\n"


def test_states_are_deleted(cli):
    for seq_nr in (1, 2, 3):
        cli.run("snapshot", "save", "accounts", "a-1", "--seq-nr", str(seq_nr), "--payload", "s")
    words = ("snapshot", "delete", "accounts", "a-1")
    assert cli.json(*words, "--seq-nr", "3")["deleted"] == 1
    assert cli.out(*words, "--max-seq-nr", "1") == "deleted 1 state of a-1\n"
    assert [one["seq_nr"] for one in cli.lines("snapshot", "list", "accounts", "a-1")] == [2]
    assert cli.json(*words, "--all")["deleted"] == 1
    cli.error(*words, code=2)
    cli.error(*words, "--all", "--seq-nr", "1", code=2)


def test_errors_of_snapshots(cli):
    save = ("snapshot", "save", "accounts")
    assert cli.error(*save, "a-2", "--seq-nr", "1", "--payload", "s", code=4)["type"] == "JournalNotFound"
    assert cli.error(*save, "a-1", "--seq-nr", "9", "--payload", "s", code=2)["type"] == "InvalidInput"
    cli.error(*save, "a-1", "--payload", "s", code=2)
    assert "no such snapshot" in cli.error("snapshot", "load", "accounts", "a-1", code=4)["message"]
    assert "no journal" in cli.error("snapshot", "load", "accounts", "a-2", code=4)["message"]
    assert "no topic" in cli.error("snapshot", "list", "acounts", "a-1", code=4)["message"]


# Quarantine


@pytest.fixture
def broken(cli) -> tuple[Cli, int, int]:
    return cli, *cli.break_journal("accounts", "a-1")


@pytest.mark.parametrize("replicated", [False, True])
def test_what_waits_is_listed_and_shown(broken, replicated):
    cli, partition, offset = broken
    if replicated:
        cli.library(replicate)
    (found,) = cli.lines("quarantine", "list")
    assert (found["topic"], found["id"], found["kind"]) == ("accounts", "a-1", "halted")
    assert (found["partition"], found["offset"]) == (partition, offset)
    assert cli.lines("quarantine", "list", "accounts") == [found]
    assert cli.lines("quarantine", "list", "other") == []
    assert "halted" in cli.out("quarantine", "list").splitlines()[1]
    shown = cli.json("quarantine", "show", "accounts", str(partition), str(offset))
    assert base64.b64decode(shown["action"]) == b'{"append":{"range":5}}'
    assert f"position  accounts:{partition}:{offset}\n" in cli.out(
        "quarantine", "show", "accounts", str(partition), str(offset)
    )
    assert cli.error("quarantine", "show", "accounts", str(partition), "99", code=4)["type"] == "NotFound"


def test_retry_halts_again_and_skip_lets_the_journal_go_on(broken):
    cli = broken[0]
    assert cli.json("quarantine", "retry", "accounts", "a-1")["token"].startswith("accounts:")
    cli.run("journal", "read", "accounts", "a-1", code=5)
    cli.error("quarantine", "skip", "accounts", "a-1", "--offset", "99", code=2)
    assert cli.out("quarantine", "skip", "accounts", "a-1").startswith("a-1: going on without it, token accounts:")
    assert len(cli.lines("journal", "read", "accounts", "a-1")) == 3
    assert cli.out("quarantine", "list") == "nothing is in quarantine\n"
    assert cli.error("quarantine", "skip", "accounts", "a-1", code=2)["type"] == "InvalidInput"
    assert cli.error("quarantine", "retry", "accounts", "a-2", code=4)["type"] == "JournalNotFound"


# Expiry


def test_a_server_says_when_a_journal_expires(tmp_path):
    with server_in_thread(small_config(tmp_path / "data")) as url:
        remote = Cli(url)
        remote.run("journal", "append", "carts", "c-1", "--payload", "a", "--expire-after", "1 day")
        found = remote.json("journal", "pointer", "carts", "c-1")
        assert found["expire_at"][:10] == found["expire_on"]


def test_expire_purges_journals_whose_day_has_come(cli):
    cli.run("journal", "append", "carts", "c-1", "--payload", "a", "--expire-after", "1 day")
    cli.library(replicate)
    found = cli.json("journal", "pointer", "carts", "c-1")
    assert found["expire_at"][:10] == found["expire_on"]
    assert cli.json("journal", "pointer", "accounts", "a-1")["expire_at"] is None
    assert cli.json("expire")["purged"] == {"accounts": 0, "carts": 0}
    assert cli.json("expire", "--day", "2999-01-01", "--topic", "accounts")["purged"] == {"accounts": 0}
    assert cli.out("expire", "--day", "2999-01-01").splitlines() == [
        "accounts: 0 journals purged",
        "carts: 1 journals purged",
    ]
    cli.run("journal", "pointer", "carts", "c-1", code=4)
    cli.error("expire", "--day", "tomorrow", code=2)
    assert cli.error("expire", "--topic", "nothing", code=2)["type"] == "InvalidInput"


# Status


def test_status_measures_the_lag_by_topic_and_by_partition(cli):
    found = cli.json("status")
    (topic,) = found["topics"]
    assert (topic["topic"], topic["records"], topic["replicated"], topic["lag"]) == ("accounts", 3, 0, 3)
    assert found["pipeline"] is None
    text = cli.out("status")
    assert text.splitlines()[0].split() == ["topic", "records", "replicated", "lag", "behind"]
    assert "never ran here" in text
    assert len(cli.out("status", "-v").splitlines()) == len(text.splitlines()) + len(found["partitions"])
    cli.library(replicate)
    (topic,) = cli.json("status")["topics"]
    assert (topic["replicated"], topic["lag"], topic["lag_seconds"]) == (3, 0, 0.0)


def test_status_shows_what_the_pipeline_said_last(cli):
    said = PipelineStatus(
        state="retrying",
        pid=7,
        host="h",
        started_ms=1,
        cycles=2,
        records=1234,
        records_per_second=99.0,
        last_cycle_records=34,
        last_cycle_ms=12.0,
        cycle_ms_p50=10.0,
        last_error="disk on fire",
        last_error_ms=5,
        left_out={"journal-old": "made again"},
        rows={"journal": 2468, "rejected": 0},
        recent=[
            CycleStatus(5, 11.0, 20, {"fold": 2.0, "rows": 7.0, "heads": 0.1}, {"journal": 40}),
            CycleStatus(6, 12.0, 34, {"fold": 4.0, "rows": 5.0}, {"journal": 68}),
        ],
        slowest=[SlowKey("accounts", "a\x1b-1", 4.25, 30, 60)],
    )
    cli.library(lambda log: save_pipeline_status(log.parts.store, said, log.parts.clock.now_ms()))
    lost = b'{"topic":"journal-accounts","partition":1,"from":3,"to":5}'
    cli.library(lambda log: log.parts.store.save_status("loss journal-accounts/1 3", lost, 7))
    cli.break_journal("accounts", "a-1")
    cli.library(replicate)
    text = cli.out("status")
    assert "lost      journal-accounts, partition 1: offsets 3 to 5" in text
    for part in ("retrying, process 7 on h", "1,234 records in 2 cycles (99/s)", "median 10 ms", "disk on fire"):
        assert part in text
    assert "time      rows 6 ms, fold 3 ms (mean of 2 cycles)" in text
    assert "rows      journal 2,468\n" in text
    assert "slow" not in text
    assert "slow      accounts a\\x1b-1: 4.2 ms, 30 records, 60 events" in cli.out("status", "-v")
    assert cli.json("status")["pipeline"]["recent"][1]["phases"] == {"fold": 4.0, "rows": 5.0}
    assert "journal-old: made again" in text
    assert "1 record in quarantine" in text
    assert cli.json("status")["quarantined"] == 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_watch_goes_on_until_it_is_interrupted(cli, monkeypatch, options):
    """Ctrl-C is how a person ends it, so that is a success."""
    monkeypatch.setattr("everlog.cli.status.PLAIN_S", 0.01)
    looked = []
    real = LocalEverlog.status

    async def status(self):
        looked.append(1)
        if len(looked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return await real(self)

    monkeypatch.setattr(LocalEverlog, "status", status)
    text = cli.out("status", "--watch", *options)
    assert len(looked) == 4  # once more at the end
    assert len(text.splitlines()) == 4 if options else text.startswith("3 records in, 0 replicated, lag 3 ")
