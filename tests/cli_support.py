"""Calling the command line in tests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from everlog.api import Everlog
from everlog.cli.main import main
from everlog.client import connect
from everlog.core.values import partition_of
from tests.support import broken_record, produce_raw


@contextmanager
def logging_restored() -> Iterator[None]:
    """The command line sets up logging for its process; tests share one."""
    logger = logging.getLogger("everlog")
    before = (logger.handlers[:], logger.level, logger.propagate)
    try:
        yield
    finally:
        logger.handlers[:], logger.level, logger.propagate = before


class Cli:
    """`everlog …` on one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str, stdin: str | bytes | None = None, code: int = 0, **environment: str) -> Result:
        """Run a command and expect its exit code."""
        env = {"EVERLOG_DATA": str(self.folder), "EVERLOG_CONFIG": None, "COLUMNS": "120", **environment}
        with logging_restored():
            result = CliRunner().invoke(main, list(words), input=stdin, env=env)
        assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
        return result

    def out(self, *words: str, **options: Any) -> str:
        """What a command prints for people."""
        return self.run(*words, **options).stdout

    def json(self, *words: str, **options: Any) -> Any:
        """The one document that a command prints."""
        return json.loads(self.run(*words, "--json", **options).stdout)

    def lines(self, *words: str, **options: Any) -> list[Any]:
        """The documents that a command prints, one per line."""
        return [json.loads(line) for line in self.run(*words, "--json", **options).stdout.splitlines()]

    def error(self, *words: str, code: int, **options: Any) -> dict[str, Any]:
        """The error document of a command that fails with this code; standard output stays empty."""
        result = self.run(*words, "--json", code=code, **options)
        assert result.stdout == ""
        found: dict[str, Any] = json.loads(result.stderr)["error"]
        return found

    def library(self, work: Callable[[Everlog], Awaitable[Any]]) -> Any:
        """Do something with the library on the same folder."""

        async def run() -> Any:
            async with connect(self.folder) as log:
                return await work(log)

        return asyncio.run(run())

    def break_journal(self, topic: str, journal_id: str) -> tuple[int, int]:
        """Put a record into the log that cannot be decoded; its partition and offset."""
        partition = partition_of(journal_id.encode(), 4)
        record = broken_record(0, key=journal_id.encode(), partition=partition)
        return partition, self.library(lambda log: produce_raw(log, topic, record))
