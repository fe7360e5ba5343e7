"""A command, an option or a setting without documentation fails here."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
import pytest

from everlog.cli.commands import CliCommand
from everlog.cli.exit_codes import EXIT_CODES
from everlog.cli.main import main
from everlog.config import CassandraConfig, Config, KafkaConfig

DOCS = Path(__file__).parents[2] / "docs"
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)


def sections(page: Path) -> dict[str, str]:
    """The text under each heading, up to the next one."""
    parts = _HEADING.split(page.read_text())
    return dict(zip((title.strip() for title in parts[1::2]), parts[2::2], strict=True))


def commands(group: click.Group, path: str = "everlog") -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        found.append((f"{path} {name}", command))
        if isinstance(command, click.Group):
            found += commands(command, f"{path} {name}")
    return found


@pytest.mark.parametrize(("name", "command"), commands(main), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_option_is_documented(name, command):
    text = sections(DOCS / "cli.md").get(name)
    assert text is not None, f"docs/cli.md has no section {name!r}"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for option in parameter.opts:
                assert re.search(rf"`{option}\b", text), f"docs/cli.md: {name} lacks {option}"
        elif parameter.metavar != "[-]":
            word = (parameter.metavar or parameter.name or "").strip("[]").upper()
            assert word in text, f"docs/cli.md: {name} lacks its argument {word}"


def test_nothing_is_documented_that_does_not_exist():
    known = {name for name, _ in commands(main)}
    written = {title for title in sections(DOCS / "cli.md") if title.startswith("everlog ")}
    assert written == known


def test_the_options_of_every_command_are_documented():
    text = sections(DOCS / "cli.md")["Options of every command"]
    leaf = next(command for _, command in commands(main) if isinstance(command, CliCommand))
    options = [*leaf.everywhere, *(one for one in main.params if isinstance(one, click.Option))]
    assert len(options) >= 7
    for option in options:
        for spelling in option.opts:
            assert f"`{spelling}" in text, spelling


def test_exit_codes_are_documented_as_they_are():
    text = sections(DOCS / "cli.md")["Exit codes"]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == set(EXIT_CODES)
    for code, meaning in EXIT_CODES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {code} |"))
        assert meaning.replace("'", "") in row.replace("`", "")


def settings() -> list[tuple[str, str, object]]:
    """Section, name and default of every setting."""
    found: list[tuple[str, str, object]] = []
    cluster = Config(kafka=KafkaConfig(), cassandra=CassandraConfig())
    for field in msgspec.structs.fields(Config):
        value = getattr(cluster, field.name)
        if isinstance(value, msgspec.Struct):
            parts = msgspec.structs.fields(value)
            found += [(f"`[{field.name}]`", part.name, getattr(value, part.name)) for part in parts]
        else:
            found.append(("At the top", field.name, value))
    return found


@pytest.mark.parametrize(("section", "name", "default"), settings(), ids=lambda value: str(value).strip("`"))
def test_every_setting_is_documented_with_its_default(section, name, default):
    text = sections(DOCS / "configuration.md")[section]
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    written = row.split("|")[2].strip()
    encoded = "none" if default is None else f"`{msgspec.json.encode(default).decode()}`"
    assert written == encoded


def test_no_setting_is_documented_that_does_not_exist():
    known = {(section, name) for section, name, _ in settings()}
    written = {
        (title, name)
        for title, text in sections(DOCS / "configuration.md").items()
        for name in re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    }
    assert written == known


def test_the_example_configuration_is_valid(tmp_path):
    import tomllib

    page = (DOCS / "configuration.md").read_text()
    embedded, cluster = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert msgspec.convert(tomllib.loads(embedded), Config).log.partitions == 8
    assert not msgspec.convert(tomllib.loads(cluster), Config).embedded
