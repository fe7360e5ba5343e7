"""The options that every command accepts, before or after its name, and what they lead to."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click
import msgspec
from click.core import ParameterSource

from everlog.api import Everlog
from everlog.cli.exit_codes import NotFound
from everlog.cli.logs import FORMATS, LEVELS
from everlog.client import connect
from everlog.config import Config, load_config
from everlog.errors import InvalidConfig
from everlog.log.factory import has_log
from everlog.runtime.event_loop import run_for_long

DEFAULT_FOLDER = "everlog-data"

P = ParamSpec("P")


@dataclass
class CliSettings:
    """What the options of a call say."""

    data: str | None = None
    config: str | None = None
    as_json: bool = False
    trace: bool = False
    log_level: str = "warning"
    log_format: str = "text"

    def load(self) -> Config:
        """The configuration: a file's, a folder's own, or the defaults. `--data` beats the file's folder."""
        if self.config is None:
            return load_config(self.data or DEFAULT_FOLDER)
        if not self.config.endswith(".toml"):
            raise InvalidConfig(f"--config {self.config}: the name of a configuration ends in .toml")
        config = load_config(self.config)
        return config if self.data is None else msgspec.structs.replace(config, data=self.data)

    def open(self, *, create: bool = False) -> Everlog:
        """The log to work on. Only a command that writes may begin a new folder: a typo must not."""
        if self.data is not None and self.data.startswith(("http://", "https://")):
            return connect(self.data)
        config = self.load()
        if not create and not has_log(config):
            raise NotFound(
                f"there is no log in {config.folder}: name its folder with --data, "
                "or begin one with 'everlog up' or 'everlog journal append'"
            )
        return connect(config, trace=self.print_statement if self.trace else None)

    def print_statement(self, statement: str, seconds: float) -> None:
        """What `--trace` shows."""
        if self.log_format == "json":
            line = msgspec.json.encode({"statement": statement, "ms": round(seconds * 1000, 3)}).decode()
        else:
            line = f"{seconds * 1000:9.3f} ms  {statement}"
        print(line, file=sys.stderr)  # a live display stands in for it and makes room

    def arguments(self) -> str:
        """The options that lead another command to the same log."""
        if self.config is not None:
            return f" --config {self.config}" + (f" --data {self.data}" if self.data else "")
        same = self.data is None or Path(self.data).resolve() == Path(DEFAULT_FOLDER).resolve()
        return "" if same else f" --data {self.data}"


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep what was said; what stands nearest to the end of the line counts."""
    settings = context.ensure_object(CliSettings)
    name = parameter.name
    assert name is not None
    if context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        setattr(settings, name, value)


def _option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_remember, **attributes)


def global_options(*, environment: bool) -> list[click.Option]:
    """The options of every command; the first in line also look into the environment."""
    data, config = ("EVERLOG_DATA", "EVERLOG_CONFIG") if environment else (None, None)
    return [
        _option("--data", metavar="FOLDER", envvar=data, help=f"Where the log is.  [./{DEFAULT_FOLDER}]"),
        _option("--config", metavar="FILE", envvar=config, help="A configuration, such as everlog.toml."),
        _option("--json", "as_json", is_flag=True, help="Print JSON: one document, or a line per item."),
        _option("--trace", is_flag=True, help="Print every SQL statement and its time on stderr."),
        _option("--log-level", type=click.Choice(LEVELS), help="How much to log on stderr.  [warning]"),
        _option("--log-format", type=click.Choice(FORMATS), help="How to log.  [text]"),
    ]


def run_with_log(
    work: Callable[[Everlog, CliSettings], Awaitable[None]], *, create: bool = False, for_long: bool = False
) -> None:
    """Open the log that the options name, and work on it; `for_long`: as a server or a worker does."""
    settings = click.get_current_context().ensure_object(CliSettings)

    async def run() -> None:
        async with settings.open(create=create) as log:
            await work(log, settings)

    (run_for_long if for_long else asyncio.run)(run())


def with_log(
    *, create: bool = False, for_long: bool = False
) -> Callable[[Callable[Concatenate[Everlog, CliSettings, P], Awaitable[None]]], Callable[P, None]]:
    """A command that works on an open log: `async def command(log, settings, **options)`."""

    def decorate(work: Callable[Concatenate[Everlog, CliSettings, P], Awaitable[None]]) -> Callable[P, None]:
        @functools.wraps(work)
        def command(*arguments: P.args, **options: P.kwargs) -> None:
            run_with_log(
                lambda log, settings: work(log, settings, *arguments, **options), create=create, for_long=for_long
            )

        return command

    return decorate
