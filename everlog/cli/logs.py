"""Logging for the command line: to standard error, as text or as JSON lines. Payloads are never logged."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

# What every log record has; all else was given as `extra=`.
_KNOWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is now: a live display may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The facts of a log record, such as topic, key and offset."""
    return {name: value for name, value in vars(record).items() if name not in _KNOWN}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000+00:00 WARNING everlog.journal: message topic=orders offset=7`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {name}={value}" for name, value in fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON document per line."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document, enc_hook=str).decode()


def start_logging(level: str, log_format: str) -> None:
    """Send the package's logs to standard error; calling it again replaces what was set."""
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("everlog")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
