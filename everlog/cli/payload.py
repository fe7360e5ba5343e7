"""Options that say what a payload is: text, JSON, a file, or standard input."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.events import Json
from everlog.core.json_text import MAX_DEPTH
from everlog.errors import MalformedRecord

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("source", required=False, metavar="[-]"),
    click.option("--payload", "text", metavar="TEXT", help="The payload, as text."),
    click.option("--json-payload", metavar="JSON", help="The payload, as JSON."),
    click.option(
        "--file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The payload is what this file holds; '-' at the end of the line: what standard input holds.",
    ),
    click.option(
        "--as",
        "kind",
        type=click.Choice(["text", "json", "binary"]),
        help="What the file holds.  [text if it is UTF-8, else binary]",
    ),
    click.option("--no-payload", is_flag=True, help="No payload at all."),
)


@dataclass(frozen=True)
class PayloadOptions:
    """What was said about the payload."""

    source: str | None = None
    text: str | None = None
    json_payload: str | None = None
    file: Path | None = None
    kind: str | None = None
    no_payload: bool = False

    @property
    def given(self) -> int:
        """How many ways were used."""
        ways = (self.source, self.text, self.json_payload, self.file)
        return sum(way is not None for way in ways) + self.no_payload

    def value(self) -> Any:
        """The payload as the library takes it."""
        if self.given == 0:
            raise click.UsageError(
                "say what the payload is: --payload TEXT, --json-payload JSON, --file FILE, '-', or --no-payload"
            )
        if self.given > 1:
            raise click.UsageError("give one payload: --payload, --json-payload, --file, '-' or --no-payload")
        if self.kind is not None and self.file is None and self.source is None:
            raise click.UsageError("--as goes with --file or '-'")
        if self.text is not None:
            return self.text
        if self.json_payload is not None:
            return Json(parse_json("--json-payload", self.json_payload))
        if self.file is not None:
            return self._decode(self.file.read_bytes())
        if self.source is not None:
            if self.source != "-":
                raise click.UsageError(f"unexpected argument {self.source!r}: '-' reads standard input")
            return self._decode(sys.stdin.buffer.read())
        return None

    def _decode(self, data: bytes) -> Any:
        if self.kind == "binary":
            return data
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            if self.kind is None:
                return data
            raise click.UsageError(f"this is not UTF-8 text: {error.reason} at byte {error.start}") from error
        return Json(parse_json("the file", text)) if self.kind == "json" else text


def payload_options(command: F) -> F:
    """Add the options; the command gets them as one `payload`."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        names = ("source", "text", "json_payload", "file", "kind", "no_payload")
        found = PayloadOptions(**{name: options.pop(name) for name in names})
        return command(*arguments, payload=found, **options)

    decorated: Any = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def parse_json(what: str, text: str | None) -> Any:
    """JSON from the command line."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise click.UsageError(f"{what} has more than {MAX_DEPTH} levels") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.UsageError(f"{what} is not valid JSON: {error}") from error


def parse_headers(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """`--header name=value`, as often as wanted."""
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise click.UsageError(f"a header is name=value, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs) or None


def parse_expiry(text: str | None) -> timedelta | None:
    """`--expire-after '1 day'`."""
    if text is None:
        return None
    try:
        return timedelta(microseconds=ExpireAfter.parse(text).nanos // 1000)
    except (MalformedRecord, OverflowError) as error:
        raise click.UsageError(f"--expire-after: {text!r} is not a duration such as '1 day' or '2 hours'") from error
