"""`everlog journal append --lines`: many events from a file or standard input."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys

import pytest

from everlog.cli.bulk import LANES, WAITING_PER_LANE
from tests.cli_support import Cli


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


def bulk(cli: Cli, lines: list, *options: str, code: int = 0):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    result = cli.run("journal", "append", "orders", "--lines", "-", *options, "--json", stdin=text, code=code)
    return json.loads(result.stdout)


def payloads(cli: Cli, journal_id: str) -> list:
    return [event["payload"] for event in cli.lines("journal", "read", "orders", journal_id)]


def test_lines_are_appended_in_order_per_journal(cli):
    numbers = [(random.Random(7).randrange(20), n) for n in range(2 * LANES * WAITING_PER_LANE)]
    done = bulk(cli, [{"id": f"o-{key}", "payload": {"n": n}} for key, n in numbers])
    assert (done["appended"], done["failed"], done["failures"]) == (len(numbers), 0, [])
    for key in {key for key, _ in numbers}:
        wanted = [{"n": n} for found, n in numbers if found == key]
        assert payloads(cli, f"o-{key}") == wanted
    # The tokens cover all of it.
    ends = {one["partition"]: one["end"] for one in cli.json("status")["partitions"]}
    assert sorted(done["tokens"]) == sorted(f"orders:{p}:{end - 1}" for p, end in ends.items() if end)


def test_a_line_may_say_all_that_an_append_can(cli):
    line = {"id": "o-1", "payload": "YQ==", "payload_type": "binary", "tags": ["eu"], "seq_nr": 3, "expected": 0}
    bulk(cli, [{**line, "headers": {"k": "v"}, "metadata": {"m": 1}, "expire_after": "2 days"}])
    (event,) = cli.lines("journal", "read", "orders", "o-1")
    for name in ("payload", "payload_type", "tags", "seq_nr", "headers"):
        assert event[name] == {**line, "headers": {"k": "v"}}[name]
    assert event["metadata"] == {"m": 1}


@pytest.mark.parametrize(
    ("line", "kind", "payload"),
    [
        ({}, None, None),
        ({"payload": "a"}, "text", "a"),
        ({"payload": [1]}, "json", [1]),
        ({"payload": "a", "payload_type": "json"}, "json", "a"),
        ({"payload": None, "payload_type": "json"}, "json", None),
        ({"payload": 7}, "json", 7),
    ],
)
def test_the_type_of_a_payload_may_be_left_out(cli, line, kind, payload):
    bulk(cli, [{"id": "o-1", **line}])
    (event,) = cli.lines("journal", "read", "orders", "o-1")
    assert (event["payload_type"], event["payload"]) == (kind, payload)


def test_what_read_prints_can_be_appended_again(cli, tmp_path):
    cli.run("journal", "append", "orders", "o-1", "--payload", "a", "--tag", "t", "--header", "k=v")
    cli.run("journal", "append", "orders", "o-1", "--json-payload", "null", "--metadata", "[1]")
    cli.run("journal", "append", "orders", "o-1", "-", stdin=b"\xff")
    cli.run("journal", "append", "orders", "o-1", "--no-payload")
    file = tmp_path / "events.jsonl"
    file.write_text(cli.out("journal", "read", "orders", "o-1", "--json"))
    assert cli.out("journal", "append", "copies", "--lines", str(file)).startswith("appended 4 events to copies in ")
    kept = ("id", "seq_nr", "payload_type", "payload", "tags", "metadata", "header_metadata", "headers")
    first, second = (
        [{name: event[name] for name in kept} for event in cli.lines("journal", "read", topic, "o-1")]
        for topic in ("orders", "copies")
    )
    assert second == first


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ('{"payload": "a"}', "missing required field `id`"),
        ('{"id": "o-1", "paylod": "a"}', "unknown field `paylod`"),
        ('{"id": "o-1", "payload": "?", "payload_type": "binary"}', "not base64"),
        ('{"id": "o-1", "payload": 1, "payload_type": "text"}', "a text payload is a JSON string"),
        ('{"id": "", "payload": "a"}', "must not be empty"),
        ('{"id": "o-1", "seq_nr": 0}', "between 1 and"),
        ('{"id": "o-1", "expire_after": "soon"}', "duration"),
        ('{"id": "o-1", "payload": "\\ud800"}', ""),
    ],
)
def test_a_bad_line_stops_with_its_number(cli, line, says):
    result = cli.run(
        "journal", "append", "orders", "--lines", "-", stdin=f'{{"id": "first"}}\n\n{line}\n{{"id": "last"}}\n', code=2
    )
    assert result.stderr.startswith("line 3: ")
    assert says in result.stderr
    assert result.stdout.endswith("1 lines failed\n")
    assert payloads(cli, "first") == [None]


def test_a_bad_line_keeps_later_lines_of_all_journals_out(cli):
    """Whoever repairs the file and appends its rest must not double anything of what came after the bad line."""
    lines = [{"id": f"o-{n}"} for n in range(10)]
    done = bulk(cli, [*lines, "{", *({"id": f"late-{n}"} for n in range(5000))], code=2)
    assert done["appended"] == 10
    assert done["failures"][0]["line"] == 11
    assert len(cli.lines("journal", "keys", "orders")) == 10


def test_keep_going_appends_the_rest_and_reports_every_bad_line(cli):
    lines = [{"id": "a"}, "{", {"id": "b", "expected": 7}, {"id": "c"}]
    done = bulk(cli, lines, "--keep-going", code=1)
    assert (done["appended"], done["failed"]) == (2, 2)
    assert [failure["line"] for failure in done["failures"]] == [2, 3]
    assert [key["id"] for key in cli.lines("journal", "keys", "orders")] == ["a", "c"]


def test_failures_of_one_kind_end_with_its_exit_code(cli):
    assert bulk(cli, [{"id": "a", "expected": 7}], "--keep-going", code=3)["failed"] == 1
    assert bulk(cli, [{"id": "a", "expected": 7}], code=3)["failed"] == 1


def test_a_line_may_expect_a_life(cli):
    bulk(cli, [{"id": "a"}])
    seen = cli.json("journal", "pointer", "orders", "a")
    version = f"{seen['seq_nr']}@{seen['life']}"
    assert bulk(cli, [{"id": "a", "expected": version}])["appended"] == 1
    assert bulk(cli, [{"id": "a", "expected": version}], code=3)["failed"] == 1
    assert bulk(cli, [{"id": "a", "expected": "two"}], code=2)["failed"] == 1


def test_no_lines_are_fine(cli):
    assert bulk(cli, [])["appended"] == 0


def test_a_line_without_end_is_refused_before_it_fills_the_memory(cli):
    text = '{"id": "a", "payload": "' + "x" * (7 * 1024 * 1024)
    result = cli.run("journal", "append", "orders", "--lines", "-", stdin=text, code=2)
    assert "line 1: it is longer than" in result.stderr


def test_lines_are_appended_as_they_come_and_an_interrupt_ends_the_wait(cli):
    """A pipe that stays open: what is in it is appended at once; Ctrl-C ends with 130."""
    words = [
        sys.executable,
        "-m",
        "everlog.cli",
        "--data",
        str(cli.folder),
        "journal",
        "append",
        "orders",
        "--lines",
        "-",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"id": "o-1", "payload": "a"}\n')
        process.stdin.flush()
        while (cli.folder / "log.db").exists() is False or "o-1" not in cli_keys(cli):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        # The record may be in the log a moment before the append knows that it won.
        assert re.fullmatch("interrupted: at least [01] lines were appended", process.stderr.read().decode().strip())


def cli_keys(cli: Cli) -> set[str]:
    async def keys(log) -> set[str]:
        journal = log.journal("orders")
        return {key async for key in journal.keys()}  # noqa: SIM118

    return cli.library(keys)
