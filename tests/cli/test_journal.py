"""`everlog journal …`, one event at a time."""

from __future__ import annotations

import base64
import json

import pytest

from everlog.testing.replication import replicate
from tests.cli_support import Cli


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def filled(cli) -> Cli:
    """orders/o-1 with text, JSON and bytes."""
    cli.run("journal", "append", "orders", "o-1", "--payload", "hello", "--tag", "eu", "--tag", "new")
    cli.run("journal", "append", "orders", "o-1", "--json-payload", '{"total": 12}')
    cli.run("journal", "append", "orders", "o-1", "-", stdin=b"\xff\x00")
    return cli


def test_append_prints_a_token_that_read_and_pointer_accept(cli):
    found = cli.json("journal", "append", "orders", "o-1", "--payload", "hello")
    assert (found["topic"], found["id"], found["seq_nr"]) == ("orders", "o-1", 1)
    assert cli.out("journal", "pointer", "orders", "o-1", "--after", found["token"]) == "1\n"
    assert len(cli.lines("journal", "read", "orders", "o-1", "--after", found["token"])) == 1
    beyond = "orders:{}:{}".format(found["token"].split(":")[1], 99)
    assert cli.error("journal", "read", "orders", "o-1", "--after", beyond, code=2)["type"] == "InvalidPosition"
    text = cli.out("journal", "append", "orders", "o-1", "--payload", "again")
    assert text.startswith("o-1 is at seqNr 2, token orders:")


def test_read_prints_a_table(filled):
    lines = filled.out("journal", "read", "orders", "o-1").splitlines()
    assert lines[0].split() == ["seqNr", "time", "(UTC)", "tags", "type", "payload"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert lines[1].split()[-3:] == ["eu,new", "-", "hello"]
    assert lines[2].endswith('{"total":12}')
    assert lines[3].endswith("base64:/wA=")


def test_types_are_taken_and_printed(cli):
    placed = ("journal", "append", "orders", "o-1", "--json-payload", '{"cents": 3}', "--type", "order-placed")
    cli.json(*placed)
    cli.json(*placed, "--type-version", "2")
    lines = cli.out("journal", "read", "orders", "o-1").splitlines()
    assert [line.split()[-2] for line in lines[1:]] == ["order-placed", "order-placed/2"]
    found = cli.lines("journal", "read", "orders", "o-1")
    assert [(one["type"], one["type_version"]) for one in found] == [("order-placed", 1), ("order-placed", 2)]
    assert cli.error(*placed, "--type-version", "0", code=2)["type"] == "InvalidEventType"


def test_lines_keep_their_types(cli, tmp_path):
    """What one log prints, another takes."""
    cli.json("journal", "append", "orders", "o-1", "--payload", "x", "--type", "note", "--type-version", "3")
    file = tmp_path / "events.jsonl"
    file.write_text(cli.out("journal", "read", "orders", "o-1", "--json"))
    cli.json("journal", "append", "copies", "--lines", str(file))
    (found,) = cli.lines("journal", "read", "copies", "o-1")
    assert (found["type"], found["type_version"], found["payload"]) == ("note", 3, "x")


def test_read_prints_json_lines(filled):
    first, second, third = filled.lines("journal", "read", "orders", "o-1")
    assert (first["payload"], first["payload_type"], first["tags"]) == ("hello", "text", ["eu", "new"])
    assert (second["payload"], second["payload_type"]) == ({"total": 12}, "json")
    assert (base64.b64decode(third["payload"]), third["payload_type"]) == (b"\xff\x00", "binary")
    assert {first["topic"], first["id"]} == {"orders", "o-1"}
    assert first["time"].endswith("+00:00")


@pytest.mark.parametrize(
    ("options", "seq_nrs"),
    [
        ([], [1, 2, 3]),
        (["--from", "2"], [2, 3]),
        (["--to", "2"], [1, 2]),
        (["--from", "2", "--to", "2"], [2]),
        (["--limit", "2"], [1, 2]),
        (["--reverse"], [3, 2, 1]),
        (["--reverse", "--limit", "1"], [3]),
    ],
)
def test_read_takes_a_range(filled, options, seq_nrs):
    assert [event["seq_nr"] for event in filled.lines("journal", "read", "orders", "o-1", *options)] == seq_nrs


def test_reads_are_the_same_before_and_after_replication(filled):
    before = filled.out("journal", "read", "orders", "o-1", "--json")
    filled.library(replicate)
    assert filled.out("journal", "read", "orders", "o-1", "--json") == before


@pytest.mark.parametrize("options", [["--from", "0"], ["--from", "3", "--to", "2"], ["--limit", "0"], ["--from", "x"]])
def test_read_refuses_an_impossible_range(filled, options):
    filled.error("journal", "read", "orders", "o-1", *options, code=2)


def test_nothing_to_read_is_explained(filled):
    assert filled.error("journal", "read", "orders", "o-2", code=4)["type"] == "JournalNotFound"
    assert "there are: orders" in filled.error("journal", "read", "ordres", "o-1", code=4)["message"]
    filled.run("journal", "delete", "orders", "o-1")
    result = filled.run("journal", "read", "orders", "o-1")
    assert result.stdout == ""
    assert "at seqNr 3, deleted up to 3" in result.stderr


def test_terminal_codes_in_payloads_and_ids_are_made_harmless(cli):
    cli.run("journal", "append", "orders", "a\x1b[31m", "--payload", "two\nlines\x07")
    assert "\x1b" not in cli.out("journal", "keys", "orders")
    assert "two\\nlines\\x07" in cli.out("journal", "read", "orders", "a\x1b[31m")


def test_append_with_everything(cli, tmp_path):
    file = tmp_path / "state.json"
    file.write_text('{"a": 1}')
    words = ["--file", str(file), "--as", "json", "--expected", "0", "--seq-nr", "5", "--tag", "t"]
    words += ["--header", "source=shop=1", "--metadata", '{"by": "me"}', "--expire-after", "1 day"]
    assert cli.json("journal", "append", "orders", "o-1", *words)["seq_nr"] == 5
    (event,) = cli.lines("journal", "read", "orders", "o-1")
    assert (event["payload"], event["headers"], event["metadata"]) == ({"a": 1}, {"source": "shop=1"}, {"by": "me"})
    head = cli.library(lambda log: log.journal("orders").head("o-1"))
    assert head.expire_after.text() == "1 day"


def test_a_file_is_text_if_it_can_be(cli, tmp_path):
    file = tmp_path / "payload"
    file.write_bytes("grün\n".encode())
    cli.run("journal", "append", "orders", "o-1", "--file", str(file))
    cli.run("journal", "append", "orders", "o-1", "--file", str(file), "--as", "binary")
    cli.run("journal", "append", "orders", "o-1", "--no-payload")
    kinds = [(event["payload_type"], event["payload"]) for event in cli.lines("journal", "read", "orders", "o-1")]
    encoded = base64.b64encode(file.read_bytes()).decode()
    assert kinds == [("text", "grün\n"), ("binary", encoded), (None, None)]
    file.write_bytes(b"\xff")
    cli.error("journal", "append", "orders", "o-1", "--file", str(file), "--as", "text", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ["o-1"],
        ["o-1", "--payload", "a", "--json-payload", "1"],
        ["o-1", "--payload", "a", "--as", "json"],
        ["o-1", "other", "--payload", "a"],
        ["o-1", "other"],
        ["o-1", "--json-payload", "{"],
        ["o-1", "--file", "/nowhere"],
        ["o-1", "--payload", "a", "--header", "no-equals"],
        ["o-1", "--payload", "a", "--header", "journal.action=x"],
        ["o-1", "--payload", "a", "--metadata", "{"],
        ["o-1", "--payload", "a", "--expire-after", "soon"],
        ["o-1", "--payload", "a", "--seq-nr", "0"],
        ["o-1", "--payload", "a", "--seq-nr", str(2**63)],
        ["o-1", "--payload", "a", "--expected", "-1"],
        ["o-1", "--payload", "a", "--tag", ""],
        ["o-1", "--payload", "a", "--append-id", "wrong"],
        ["o-1", "--payload", "a", "--keep-going"],
        ["o-1", "--payload", "a", "--lines", "-"],
        ["--expected", "0", "--lines", "-"],
        ["--lines", "/nowhere"],
        ["--payload", "a"],
        ["", "--payload", "a"],
        ["x" * 4097, "--payload", "a"],
        ["o-1", "--payload", "x" * (1024 * 1024)],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_invalid_appends_end_with_2_and_store_nothing(cli, words):
    cli.error("journal", "append", "orders", *words, code=2)
    cli.run("journal", "append", "check", "c", "--payload", "a")
    assert cli.json("status")["topics"] in (
        [{"topic": "check", "records": 1, "replicated": 0, "lag": 1, "lag_seconds": pytest.approx(0, abs=60)}],
        [
            {"topic": "check", "records": 1, "replicated": 0, "lag": 1, "lag_seconds": pytest.approx(0, abs=60)},
            {"topic": "orders", "records": 0, "replicated": 0, "lag": 0, "lag_seconds": 0.0},
        ],
    )


def test_a_conflict_ends_with_3_and_says_where_the_journal_is(filled):
    words = ("journal", "append", "orders", "o-1", "--payload", "a")
    error = filled.error(*words, "--expected", "1", code=3)
    assert (error["type"], error["expected"], error["actual"]) == ("Conflict", 1, 3)
    filled.error(*words, "--seq-nr", "3", code=3)
    result = filled.run(*words, "--expected", "1", code=3)
    assert result.stderr.startswith("error: ")
    assert filled.json(*words, "--expected", "3")["seq_nr"] == 4


def test_an_append_is_repeated_with_its_id(cli):
    cli.run("journal", "append", "orders", "o-1", "--payload", "a")
    (event,) = cli.lines("journal", "read", "orders", "o-1")
    again = cli.json("journal", "append", "orders", "o-1", "--payload", "a", "--append-id", event["append_id"])
    assert again["token"] == event["position"]
    assert cli.out("journal", "pointer", "orders", "o-1") == "1\n"


def test_delete_purge_mark_and_keys(filled):
    filled.run("journal", "append", "orders", "o-2", "--payload", "a")
    assert filled.out("journal", "delete", "orders", "o-1", "--to", "2").startswith("deleted events up to 2 of o-1, ")
    assert [event["seq_nr"] for event in filled.lines("journal", "read", "orders", "o-1")] == [3]
    assert filled.json("journal", "mark", "orders", "o-1", "m1")["token"].startswith("orders:")
    assert filled.out("journal", "keys", "orders") == "o-1\no-2\n"
    assert filled.json("journal", "purge", "orders", "o-1")["id"] == "o-1"
    assert filled.lines("journal", "keys", "orders") == [{"topic": "orders", "id": "o-2"}]
    for command in ("pointer", "delete", "purge", "read"):
        assert filled.error("journal", command, "orders", "o-1", code=4)["type"] == "JournalNotFound"
    assert filled.error("journal", "keys", "ordres", code=4)["message"].endswith("there are: orders")


def test_purging_a_mistyped_topic_does_not_begin_it(filled):
    filled.run("journal", "purge", "ordres", "o-1", code=4)
    assert [topic["topic"] for topic in filled.json("status")["topics"]] == ["orders"]


def test_a_halted_journal_ends_with_5_after_what_could_be_read(filled):
    partition, offset = filled.break_journal("orders", "o-1")
    result = filled.run("journal", "read", "orders", "o-1", "--json", code=5)
    assert [json.loads(line)["seq_nr"] for line in result.stdout.splitlines()] == [1, 2, 3]
    error = json.loads(result.stderr)["error"]
    assert (error["type"], error["partition"], error["offset"]) == ("JournalHalted", partition, offset)
    filled.error("journal", "append", "orders", "o-1", "--payload", "a", code=5)
    filled.run("journal", "purge", "orders", "o-1")
    assert filled.json("journal", "append", "orders", "o-1", "--payload", "a")["seq_nr"] == 1


@pytest.mark.parametrize("command", [("append", "--json-payload"), ("append", "--metadata"), ("append", "--lines")])
@pytest.mark.parametrize(
    "wrong",
    ["NaN", "1e999", "[" * 129 + "]" * 129, "[" * 5000 + "]" * 5000, r'"\ud800"', "[1,]"],
    ids=lambda text: text[:8],
)
def test_json_that_is_refused_elsewhere_is_refused_here(filled, command, wrong):
    """The same limits as in Python: exit code 2, and nothing is stored."""
    name, option = command
    if option == "--lines":
        line = f'{{"id":"o-1","payload":{wrong},"payload_type":"json"}}'
        result = filled.run("journal", name, "orders", "--lines", "-", stdin=line, code=2)
    else:
        payload = () if option == "--json-payload" else ("--payload", "x")
        result = filled.run("journal", name, "orders", "o-1", *payload, option, wrong, code=2)
    assert "Traceback" not in result.stderr
    assert filled.out("journal", "pointer", "orders", "o-1") == "3\n"


def test_words_that_are_not_unicode_are_refused(filled):
    """A shell hands on bytes that are no UTF-8 as halves of surrogate pairs."""
    half = "o-\udcff"
    for words in (
        ("append", "orders", half, "--payload", "x"),
        ("append", "orders", "o-1", "--payload", half),
        ("append", "orders", "o-1", "--payload", "x", "--header", f"{half}=x"),
        ("append", "orders", "o-1", "--payload", "x", "--header", f"x={half}"),
        ("append", "orders", "o-1", "--payload", "x", "--tag", half),
        ("append", half, "o-1", "--payload", "x"),
        ("read", "orders", half),
        ("read", "orders", "o-1", "--after", half),
        ("purge", "orders", half),
    ):
        said = filled.run("journal", *words, code=2).stderr
        assert "Traceback" not in said
        assert "No such" not in said
    assert filled.out("journal", "pointer", "orders", "o-1") == "3\n"
    assert filled.out("journal", "keys", "orders").split() == ["o-1"]
