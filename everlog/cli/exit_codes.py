"""How the command line ends: exit codes, and errors as one line or one JSON document."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from everlog.errors import (
    Conflict,
    DocumentNotFound,
    DocumentRefused,
    EverlogError,
    InvalidInput,
    JournalHalted,
    JournalNotFound,
    LeaseLost,
    OffsetConflict,
    QueueNotFound,
    ScheduleNotFound,
    UnknownProjection,
)

OK = 0
FAILED = 1
USAGE = 2
CONFLICT = 3
NOT_FOUND = 4
HALTED = 5
RETRY = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT

EXIT_CODES = {
    OK: "done",
    FAILED: "an error; the line on standard error says which",
    USAGE: "wrong usage or invalid input; nothing was stored",
    CONFLICT: "not where --expected or --seq-nr said; a lease is lost; a document does not allow it",
    NOT_FOUND: "no such folder, topic, journal, snapshot, document, record, queue or projection",
    HALTED: "a record of this journal cannot be applied: see 'everlog quarantine'",
    RETRY: "try again: outcome unknown, file busy, overtaken, disk full, still behind",
    INTERRUPTED: "interrupted before the end",
}


class NotFound(EverlogError):
    """What was asked for is not there."""


class LineFailed(EverlogError):
    """A line of a bulk append could not be appended; `cause` says why."""

    def __init__(self, line: int, cause: EverlogError) -> None:
        super().__init__(f"line {line}: {cause}")
        self.line = line
        self.cause = cause


def exit_code(error: BaseException) -> int:
    """The exit code that stands for an error.

    >>> exit_code(Conflict("orders:o-1", 3, 4))
    3
    """
    if isinstance(error, LineFailed):
        return exit_code(error.cause)
    if isinstance(error, InvalidInput | click.UsageError):
        return USAGE
    if isinstance(error, Conflict | OffsetConflict | LeaseLost):
        return CONFLICT
    if isinstance(
        error, JournalNotFound | UnknownProjection | QueueNotFound | ScheduleNotFound | NotFound | DocumentNotFound
    ):
        return NOT_FOUND
    if isinstance(error, DocumentRefused) and not error.retriable:
        return CONFLICT
    if isinstance(error, JournalHalted):
        return HALTED
    if isinstance(error, EverlogError) and error.retriable:
        return RETRY
    return FAILED


def error_document(error: BaseException) -> dict[str, Any]:
    """An error for machines: its type, its message, and the facts that it carries."""
    if isinstance(error, click.ClickException):
        return {"error": {"type": type(error).__name__, "message": error.format_message()}}
    facts: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, EverlogError):
        facts["retriable"] = error.retriable
    facts |= {
        name: error_document(value)["error"] if isinstance(value, BaseException) else value
        for name, value in vars(error).items()
        if not name.startswith("_")
    }
    return {"error": facts}


def report(error: BaseException, *, as_json: bool) -> None:
    """Say on standard error what went wrong, in one line."""
    if as_json:
        click.echo(msgspec.json.encode(error_document(error), enc_hook=str).decode(), err=True)
    elif isinstance(error, click.UsageError):
        error.show()
    elif isinstance(error, EverlogError):
        click.echo(f"error: {one_line(str(error))}", err=True)
    elif isinstance(error, click.ClickException):
        click.echo(f"error: {one_line(error.format_message())}", err=True)
    else:
        text = one_line(f"{type(error).__name__}: {error}")
        click.echo(f"error: {text} (unexpected: --log-level debug shows where)", err=True)


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())
