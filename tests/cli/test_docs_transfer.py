"""`everlog docs export` and `everlog docs import`, in a folder and over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from everlog import sync
from everlog.cli import docs_transfer
from everlog.client import connect
from everlog.console.server import serving
from tests.cli_support import Cli
from tests.support import small_config

LINES = [
    {"path": "shop/a~"},
    *[{"path": f"shop/a~/{n}", "body": {"n": n, "text": "\u2028 \u00fc", "id": str(n)}} for n in range(7)],
    {"path": "shop/empty~"},
    {"path": "shop/settings", "body": [1.5, None, {"deep": {"x": True}}]},
]


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def file(tmp_path) -> Iterator[str]:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return str(path)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(docs_transfer, "MAX_GROUP", 3)
    monkeypatch.setattr(docs_transfer, "PAGE", 2)


def counts(found: dict[str, object]) -> list[object]:
    return [found[name] for name in ("created", "unchanged", "replaced", "skipped", "failed")]


def test_what_is_exported_comes_back_equal(cli: Cli, tmp_path, file: str) -> None:
    assert counts(cli.json("docs", "import", file)) == [10, 0, 0, 0, 0]
    paths = ("shop/a~", "shop/empty~", "shop/settings")
    first = cli.out("docs", "export", *paths)
    assert [json.loads(line) for line in first.split("\n")[:-1]] == LINES
    other = Cli(tmp_path / "other")
    assert counts(other.json("docs", "import", "-", stdin=first)) == [10, 0, 0, 0, 0]
    assert other.out("docs", "export", *paths) == first
    # A view comes again by itself; what is below the prefix is all the rest.
    with sync.connect(tmp_path / "other") as log:
        log.documents.put_view("shop/view~", "shop/a~/{*}")
    assert other.out("docs", "export", "--prefix", "shop/") == "\n".join(first.split("\n")[:-2]) + "\n"
    assert "not plain documents" in other.run("docs", "export", "--prefix", "").stderr
    assert other.run("docs", "export", *paths).stderr == ""


def test_exact_numbers_survive(cli: Cli) -> None:
    line = '{"path":"d","body":{"n":1.50,"m":12345678901234567890123.0000001}}\n'
    cli.run("docs", "import", "-", stdin=line)
    assert cli.out("docs", "export", "d") == line


def test_an_import_may_be_repeated(cli: Cli, file: str) -> None:
    """It writes nothing twice; what differs is left to the user."""
    some = "".join(json.dumps(line) + "\n" for line in LINES[:4])
    assert counts(cli.json("docs", "import", "-", stdin=some)) == [4, 0, 0, 0, 0]
    assert counts(cli.json("docs", "import", file)) == [6, 4, 0, 0, 0]
    assert counts(cli.json("docs", "import", file)) == [0, 10, 0, 0, 0]
    assert cli.run("docs", "history", "shop/a~", "--json").stdout.count("\n") == 8
    cli.run("docs", "patch", "shop/a~/3", '{"n": 99}')
    found = json.loads(cli.run("docs", "import", file, "--json", code=3).stdout)
    assert counts(found) == [0, 9, 0, 0, 1]
    assert found["failures"][0]["line"] == 5
    assert counts(cli.json("docs", "import", file, "--skip-existing")) == [0, 9, 0, 1, 0]
    assert json.loads(cli.out("docs", "get", "shop/a~/3"))["n"] == 99
    assert counts(cli.json("docs", "import", file, "--replace")) == [0, 9, 1, 0, 0]
    assert json.loads(cli.out("docs", "get", "shop/a~/3"))["n"] == 3


def test_bad_lines_harm_no_others(cli: Cli) -> None:
    lines = 'nope\n{"path": "a", "body": 1}\n{"path": "/b", "body": 1}\n{"path": "c"}\n[]\n'
    found = json.loads(cli.run("docs", "import", "-", "--json", stdin=lines, code=2).stdout)
    assert counts(found) == [1, 0, 0, 0, 4]
    assert [one["line"] for one in found["failures"]] == [1, 3, 4, 5]
    assert "line 1: " in cli.run("docs", "import", "-", stdin=lines, code=2).stderr
    cli.run("docs", "import", "missing.jsonl", code=2)
    cli.run("docs", "import", "-", "--replace", "--skip-existing", stdin="", code=2)
    cli.run("docs", "export", code=2)
    assert cli.error("docs", "export", "none~", code=4)["code"] == "not_found"


async def test_from_and_to_a_server(cli: Cli, tmp_path, file: str) -> None:
    config = small_config(tmp_path / "served")
    async with connect(config) as log, serving(log, host="127.0.0.1", port=0) as address:
        options = {"EVERLOG_DATA": address}
        for expected in ([10, 0, 0, 0, 0], [0, 10, 0, 0, 0]):
            assert counts(await asyncio.to_thread(cli.json, "docs", "import", file, **options)) == expected
        exported = await asyncio.to_thread(cli.out, "docs", "export", "--prefix", "", "shop/settings", **options)
    found = {json.dumps(json.loads(line), sort_keys=True) for line in exported.split("\n")[:-1]}
    assert found == {json.dumps(line, sort_keys=True) for line in LINES}
