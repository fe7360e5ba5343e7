"""The code in README.md and docs/ is run, and prints what it says that it prints."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import everlog
from everlog.cli.main import main
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    """A piece of code, and what it prints, if the page says so."""

    language: str
    code: str
    output: str | None


def blocks(page: Path) -> list[Block]:
    found = [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text())]
    following = [*found[1:], ("", "")]
    return [
        Block(language, code, after if kind == "text" else None)
        for (language, code), (kind, after) in zip(found, following, strict=True)
    ]


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def test_the_program_of_the_readme_prints_what_it_says(tmp_path):
    (program,) = python_blocks(ROOT / "README.md")
    assert program.output is not None
    assert len(program.code.strip().splitlines()) <= 25
    file = tmp_path / "program.py"
    file.write_text(program.code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (program.output, "")


@pytest.mark.parametrize("name", ["typed-events.md", "aggregates.md"])
def test_a_page_begins_with_a_program(name, tmp_path):
    """It is pasted into a file and run, as a reader does."""
    program = blocks(ROOT / "docs" / name)[0]
    assert (program.language, program.output is None) == ("python program", False)
    file = tmp_path / "program.py"
    file.write_text(program.code)
    words = [sys.executable, "-W", "error", str(file)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (program.output, "")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("queues*.md")), ids=lambda page: page.name)
def test_a_page_about_queues_begins_with_a_program(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = blocks(page)[0]
    assert (program.language, program.output is None) == ("python program", False)
    (tmp_path / "program.py").write_text(program.code)
    runpy.run_path("program.py", run_name="__main__")
    assert capsys.readouterr().out == program.output


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if python_blocks(page)], ids=lambda page: page.name)
async def test_the_code_of_a_page_prints_what_it_says(page, tmp_path):
    """Block after block in one log."""
    async with everlog.connect(tmp_path / "everlog-data") as log:
        names = {"everlog": everlog, "log": log}
        if not page.name.startswith("queues"):  # these import what they use
            names = {**vars(everlog), **names, "orders": log.journal("orders")}
        for block in python_blocks(page):
            code = compile(block.code, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                result = eval(code, names)
                if inspect.iscoroutine(result):
                    await result
            assert printed.getvalue() == (block.output or ""), block.code
    # The page and the log end what they begin; a stream that the page has left is closed a moment later.
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_is_not_run_is_at_least_python(page):
    for block in blocks(page):
        if block.language.startswith("python"):
            compile(block.code, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def mentioned_commands(text: str) -> list[str]:
    """Lines of shell blocks, and commands in backquotes that are complete."""
    return [line for line in text.splitlines() if line.startswith("everlog ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("events.jsonl", "invoice.pdf", "queues.xml"):
        (tmp_path / name).write_text("")
    for block in blocks(page):
        if block.language in ("sh", ""):
            for line in mentioned_commands(block.code):
                parse(line)


def test_the_examples_in_the_help_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "invoice.pdf").write_text("")

    def examples(command: click.Command) -> list[str]:
        own = list(getattr(command, "examples", ()))
        if isinstance(command, click.Group):
            own += [example for sub in command.commands.values() for example in examples(sub)]
        return own

    found = examples(main)
    assert len(found) > 10
    for line in found:
        for part in line.split(" | "):
            if part.startswith("everlog "):
                parse(re.split(" [<>] ", part)[0])


def parse(line: str) -> None:
    """Fails if there is no such command or option."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = command.make_context(command.name, words, parent=context)
        words = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, words)
        assert name is not None, line
        assert command is not None, line
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("name", "prints"),
    [
        ("counter.py", ["the counter is at 20 after 20 events and some conflicts"]),
        ("account.py", ["refused: -200 with a balance of 95", "recovered at event 23 by replaying 3: balance 305"]),
        ("feed.py", ["  o-1: placed on Monday", "  o-1: placed on Tuesday", "  0 new"]),
        ("projection_view.py", ["bob owes 2500 cents", "1 record waits", "alice owes 0 cents"]),
        ("projection_words.py", [f"{form}: {{'a': 3, 'rose': 3, 'is': 2}}" for form in ("initial", "demand", "actor")]),
        ("threads.py", ["sensor-4: 25 readings, mean 22.0", "left of sensor-1: [21, 22, 23, 24, 25]"]),
        (
            "queue_mails.py",
            [
                "welcome: the argument 'to' does not fit: Expected `object`, got `str`",
                "welcome Eve, a member since January 2026",
                "2 attempts of a welcome, 1 of a survey",
            ],
        ),
        ("queue_pages.py", ["40 edits of 3 pages, fewer than 10 runs", "news: indexed with edit 39, the last one"]),
        (
            "typed_events.py",
            ["reading/1: 20.0 °C from unknown", "unknown, so plain JSON: reading {'fahrenheit': 68.0}"],
        ),
        ("aggregates.py", ["20 seats are sold", "20 have an owner, after 20 events", "eve has none left"]),
        ("live_products.py", ["pot: 1 left, tea: 2 left", "cup: 6 left, tea: 1 left", "sold out"]),
        ("documents.py", ["open: ['call Eve']", "3 feed:patch {'done': True}", "new: todo~/rest"]),
    ],
)
def test_examples_run(name, prints, tmp_path):
    words = [sys.executable, "-W", "error", str(ROOT / "examples" / name)]
    done = subprocess.run([*words, str(tmp_path / "data")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for line in prints:
        assert line in done.stdout.splitlines()


def test_every_example_is_run():
    ran = {
        "counter.py",
        "account.py",
        "feed.py",
        "threads.py",
        "queue_pages.py",
        "queue_mails.py",
        "documents.py",
        "live_products.py",
        "typed_events.py",
        "aggregates.py",
        "projection_view.py",
        "projection_words.py",
        "projection_cassandra.py",  # in tests/projections/test_record_source_cluster.py
        "projection_spark.py",  # in tests/projections/test_spark.py
    }
    assert {file.name for file in (ROOT / "examples").glob("*.py")} == ran
