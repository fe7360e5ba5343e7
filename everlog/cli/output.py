"""What commands print: text for people, JSON for programs."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from everlog.core.codec import split_metadata
from everlog.core.events import EventRecord
from everlog.core.values import Position
from everlog.store.port import Snapshot


def encode(value: Any) -> str:
    """One JSON document on one line; bytes become base64, what JSON does not know becomes text."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def show(as_json: bool, document: Any, text: str) -> None:
    """Print a result, once for machines or once for people."""
    click.echo(encode(document) if as_json else text)


def moment(timestamp_ms: int) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03}"


def plain(text: str) -> str:
    """Text that cannot upset a terminal, on one line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def payload_document(kind: str | None, data: str | bytes | None) -> Any:
    """A stored payload inside JSON: bytes as base64, JSON to the letter, however deep it is."""
    if kind == "binary":
        return base64.b64encode(data or b"").decode()  # type: ignore[arg-type]
    return raw_json(data or "null") if kind == "json" else data


def raw_json(text: str | bytes | None) -> msgspec.Raw | None:
    """Stored JSON inside JSON, on one line: a line feed is only ever between its values."""
    data = text.encode() if isinstance(text, str) else text
    return None if data is None else msgspec.Raw(data.replace(b"\n", b" "))


def payload_text(kind: str | None, data: str | bytes | None) -> str:
    """A payload on one line."""
    if kind is None:
        return "-"
    if isinstance(data, bytes):
        return f"base64:{base64.b64encode(data).decode()}" if kind == "binary" else plain(data.decode())
    return plain(data or "")


def type_text(event: EventRecord) -> str:
    """The type of an event as people read it: `order-placed`, or `order-placed/2` from its second version on."""
    kind = event.event_type
    if kind is None:
        return "-"
    return plain(kind.name if kind.version == 1 else f"{kind.name}/{kind.version}")


def event_document(topic: str, journal_id: str, event: EventRecord) -> dict[str, Any]:
    """An event as a JSON line; `journal append --lines` takes it back."""
    header, metadata = split_metadata(event.metadata_json)
    return {
        "topic": topic,
        "id": journal_id,
        "seq_nr": event.seq_nr,
        "type": event.type,
        "type_version": event.type_version,
        "payload_type": event.payload_type,
        "payload": payload_document(event.payload_type, event.data),
        "tags": sorted(event.tags),
        "time": event.time.isoformat(timespec="milliseconds"),
        "position": str(Position(topic, event.partition, event.offset)),
        "metadata": raw_json(metadata.data),
        "header_metadata": raw_json(header),
        "headers": dict(event.headers),
        "origin": event.origin,
        "version": event.version,
        "append_id": event.append_id,
    }


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON."""
    return {
        "seq_nr": snapshot.seq_nr,
        "time": datetime.fromtimestamp(snapshot.timestamp / 1000, UTC).isoformat(timespec="milliseconds"),
        "payload_type": snapshot.payload_type,
        "payload": payload_document(snapshot.payload_type, snapshot.data),
        "metadata": raw_json(snapshot.metadata_json or None),
    }


class TableRows:
    """A table that is printed as it comes: the widths are those of the first page, the last column is free."""

    def __init__(self, *titles: str) -> None:
        self._titles = titles
        self._widths: list[int] | None = None
        # On a terminal a row is one line; elsewhere nothing is cut.
        self._room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def add(self, page: Sequence[Sequence[str]]) -> None:
        """Print a page of rows."""
        if not page:
            return
        lines = []
        if self._widths is None:
            columns = zip(self._titles, *page, strict=True)
            self._widths = [max(len(cell) for cell in column) for column in columns][:-1]
            lines.append(click.style(self._line(self._titles), bold=True))
        lines += [self._line(row) for row in page]
        click.echo("\n".join(lines))

    def _line(self, row: Sequence[str]) -> str:
        assert self._widths is not None
        cells = [f"{cell:<{width}}" for cell, width in zip(row[:-1], self._widths, strict=True)]
        line = "  ".join([*cells, row[-1]]).rstrip()
        if self._room is not None and len(line) > self._room:
            return line[: self._room - 1] + "…"
        return line


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal while work lasts; the function takes how much is done, and of how much, if that is known."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
