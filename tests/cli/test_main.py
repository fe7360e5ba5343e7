"""The command line as a whole: help, global options, errors and exit codes."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys

import click
import pytest

from everlog.cli.commands import CliCommand
from everlog.cli.exit_codes import EXIT_CODES, LineFailed, error_document, exit_code
from everlog.cli.logs import JsonFormatter, TextFormatter
from everlog.cli.main import main
from everlog.errors import (
    Busy,
    Conflict,
    DiskFull,
    EverlogError,
    InvalidConfig,
    InvalidSeqNr,
    JournalHalted,
    JournalNotFound,
    LogTruncated,
    MissingExtra,
    OutcomeUnknown,
    Overtaken,
)
from everlog.version import __version__
from tests.cli_support import Cli


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words."""
    found = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def test_help_is_a_page_with_groups_examples_and_exit_codes(cli):
    page = cli.out("--help")
    for title in ("Run:", "Work with journals:", "Look after them:", "Examples:", "Exit codes:"):
        assert f"\n{title}\n" in page
    for name in main.commands:
        assert f"\n  {name} " in page
    for code, meaning in EXIT_CODES.items():
        assert f"  {code:<4} {meaning}"[:40] in page


@pytest.mark.parametrize("words", [path for path, _ in commands()], ids=" ".join)
def test_every_command_has_help_with_the_options_of_all(cli, words):
    page = cli.out(*words, "--help")
    assert f"Usage: everlog {' '.join(words)}" in page
    assert "Options of every command:" in page
    for option in ("--data", "--config", "--json", "--trace", "--log-level", "--log-format"):
        assert option in page


def test_every_command_is_documented_where_it_is_defined():
    for words, command in commands():
        assert command.help, words
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, (words, option.name)


def test_version(cli):
    assert cli.out("--version") == f"everlog, version {__version__}\n"


def test_without_a_command_help_is_shown_and_it_is_a_usage_error(cli):
    assert "Usage: everlog" in cli.run(code=2).stderr


def test_global_options_stand_before_or_after_the_command(cli, tmp_path):
    cli.run("journal", "append", "orders", "o-1", "--payload", "a")
    known = cli.json("journal", "pointer", "orders", "o-1")
    expected = {
        "topic": "orders",
        "id": "o-1",
        "seq_nr": 1,
        "life": known["life"],
        "expire_on": None,
        "expire_at": None,
    }
    words = ["journal", "pointer", "orders", "o-1"]
    for line in (["--json", *words], ["journal", "--json", *words[1:]], [*words, "--json"]):
        assert json.loads(cli.out(*line)) == expected
    other = str(tmp_path / "other")
    cli.run("--data", other, "journal", "append", "orders", "o-1", "--payload", "a")
    cli.run("journal", "append", "orders", "o-1", "--payload", "b", "--data", other)
    assert cli.json("journal", "pointer", "orders", "o-1", "--data", other)["seq_nr"] == 2
    # The option nearest to the end counts, and an option beats the variable.
    line = ["--data", str(cli.folder), *words, "--data", other]
    assert cli.out(*line) == "2\n"


def test_a_config_file_says_where_the_data_is(cli, tmp_path):
    file = tmp_path / "everlog.toml"
    file.write_text('data = "here"\n[log]\npartitions = 2\n')
    words = ("journal", "append", "orders", "o-1", "--payload", "a", "--config", str(file))
    # EVERLOG_DATA is set as well: a folder that is named beats the file's.
    cli.run(*words, EVERLOG_DATA="")
    assert (tmp_path / "here" / "log.db").exists()
    status = cli.json("status", EVERLOG_DATA="", EVERLOG_CONFIG=str(file))
    assert len(status["partitions"]) == 2
    cli.run(*words)
    assert (cli.folder / "log.db").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [("partitons = 3", "partitons"), ("[log]\npartitions = 0", ">= 1"), ("not toml", "not valid TOML")],
)
def test_a_bad_config_is_a_clear_error(cli, tmp_path, text, says):
    file = tmp_path / "everlog.toml"
    file.write_text(text)
    error = cli.error("status", "--config", str(file), code=2)
    assert error["type"] == "InvalidConfig"
    assert says in error["message"]


def test_a_missing_config_is_a_clear_error(cli, tmp_path):
    result = cli.run("status", "--config", str(tmp_path / "none.toml"), code=2)
    assert result.stderr.startswith("error: there is no file")
    assert result.stderr.count("\n") == 1
    assert "ends in .toml" in cli.error("status", "--config", str(tmp_path / "none.yaml"), code=2)["message"]


@pytest.mark.parametrize(
    "words",
    [
        ("journal", "read", "orders", "o-1"),
        ("journal", "pointer", "orders", "o-1"),
        ("journal", "keys", "orders"),
        ("journal", "delete", "orders", "o-1"),
        ("journal", "purge", "orders", "o-1"),
        ("snapshot", "load", "orders", "o-1"),
        ("snapshot", "list", "orders", "o-1"),
        ("quarantine", "list"),
        ("status",),
        ("expire",),
    ],
    ids=" ".join,
)
def test_a_mistyped_folder_is_not_made(cli, words):
    error = cli.error(*words, code=4)
    assert error["type"] == "NotFound"
    assert "--data" in error["message"]
    assert not cli.folder.exists()


def test_wrong_usage_makes_no_folder_either(cli):
    cli.run("journal", "append", "orders", "o-1", code=2)
    cli.run("journal", "append", "orders", "o-1", "--json-payload", "{", code=2)
    assert not cli.folder.exists()


def test_a_folder_that_cannot_be_made_is_a_clear_error(cli, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    words = ("journal", "append", "orders", "o-1", "--payload", "a", "--data", str(file / "data"))
    assert cli.error(*words, code=1)["type"] == "NotWritable"


def test_a_folder_of_a_newer_version_is_refused(cli):
    cli.run("journal", "append", "orders", "o-1", "--payload", "a")
    connection = sqlite3.connect(cli.folder / "log.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    error = cli.error("journal", "read", "orders", "o-1", code=1)
    assert error["type"] == "NewerVersion"
    assert "upgrade" in error["message"]


def test_trace_prints_statements_with_their_time_on_stderr(cli):
    cli.run("journal", "append", "orders", "o-1", "--payload", "secret")
    result = cli.run("journal", "pointer", "orders", "o-1", "--trace")
    assert result.stdout == "1\n"
    assert any(" ms  SELECT " in line for line in result.stderr.splitlines())
    result = cli.run("journal", "pointer", "orders", "o-1", "--trace", "--log-format", "json")
    traced = [json.loads(line) for line in result.stderr.splitlines()]
    assert all(line["ms"] >= 0 for line in traced)
    assert any(line["statement"].startswith("SELECT") for line in traced)
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EverlogError("x"), 1),
        (LogTruncated("orders", 0, "x"), 1),
        (MissingExtra("spark"), 1),
        (RuntimeError("x"), 1),
        (InvalidSeqNr("x"), 2),
        (InvalidConfig("x"), 2),
        (click.UsageError("x"), 2),
        (Conflict("k", 1, 2), 3),
        (JournalNotFound("x"), 4),
        (JournalHalted("k", 0, 7), 5),
        (OutcomeUnknown("k", "1.x", "time-out"), 75),
        (Busy("x"), 75),
        (Overtaken("x"), 75),
        (DiskFull("x"), 75),
        (LineFailed(3, Conflict("k", 1, 2)), 3),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error, code):
    assert exit_code(error) == code
    assert code in EXIT_CODES


def test_an_error_document_has_the_facts():
    document = error_document(OutcomeUnknown("orders:o-1", "1.x", "a time-out"))["error"]
    assert (document["type"], document["retriable"]) == ("OutcomeUnknown", True)
    assert (document["key"], document["append_id"], document["reason"]) == ("orders:o-1", "1.x", "a time-out")
    nested = error_document(LineFailed(3, Conflict("k", 1, 2)))["error"]
    assert (nested["line"], nested["cause"]["type"], nested["cause"]["actual"]) == (3, "Conflict", 2)


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_debug(cli, monkeypatch):
    def fail(self: object, context: click.Context) -> None:
        raise RuntimeError("first line\nsecond line")

    cli.run("journal", "append", "orders", "o-1", "--payload", "a")
    monkeypatch.setattr("everlog.client.LocalEverlog.status", fail)
    monkeypatch.setattr("everlog.client.LocalEverlog.topics", fail)
    result = cli.run("status", code=1)
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "Traceback" in cli.run("status", "--log-level", "debug", code=1).stderr
    assert cli.error("status", code=1)["type"] in ("RuntimeError", "TypeError")


def test_usage_errors_are_json_as_well(cli):
    error = cli.error("journal", "read", "orders", code=2)
    assert error["type"] == "MissingParameter"
    assert cli.error("journal", "reed", code=2)["type"] in ("UsageError", "NoSuchCommand")
    assert cli.error("status", "--wrong", code=2)["type"] == "NoSuchOption"


def test_an_interrupted_command_ends_with_130(cli, monkeypatch):
    def interrupt(self: CliCommand, context: click.Context) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CliCommand, "invoke", interrupt)
    cli.run("status", code=130)


def test_log_records_become_text_or_json_with_their_fields():
    record = logging.makeLogRecord(
        {"name": "everlog.journal", "levelname": "WARNING", "msg": "read %s", "args": ("again",), "topic": "orders"}
    )
    assert TextFormatter().format(record).endswith(" WARNING everlog.journal: read again topic=orders")
    document = json.loads(JsonFormatter().format(record))
    assert (document["level"], document["message"], document["topic"]) == ("warning", "read again", "orders")
    assert document["logger"] == "everlog.journal"


def test_a_reader_that_has_enough_is_no_error(cli):
    """`everlog journal read … | head -1`."""
    lines = "\n".join(json.dumps({"id": "o-1", "payload": "x" * 1000}) for _ in range(300))
    cli.run("journal", "append", "orders", "--lines", "-", stdin=lines)
    script = f'"{sys.executable}" -m everlog.cli --data "{cli.folder}" journal read orders o-1 | head -1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
