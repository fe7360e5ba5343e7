"""Appending JSON lines in bulk: bounded, in order per journal, with a progress bar."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from everlog.cli.exit_codes import LineFailed
from everlog.cli.payload import parse_expiry
from everlog.core.events import Event, Json
from everlog.core.values import Version, check_id
from everlog.errors import EverlogError, InvalidInput
from everlog.journal.journal import Journal, Token

LANES = 64
WAITING_PER_LANE = 16
CHUNK_BYTES = 64 * 1024
MAX_FAILURES = 1000


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line. What `journal read --json` prints is accepted too; the fields that the log decides are passed over."""

    id: str
    payload: Any = None
    payload_type: Literal["text", "json", "binary"] | None = None
    tags: list[str] = []
    seq_nr: int | None = None
    type: str | None = None
    type_version: int | None = None
    expected: int | str | None = None
    expire_after: str | None = None
    metadata: Any = None
    header_metadata: Any = None
    headers: dict[str, str] | None = None
    topic: Any = None
    time: Any = None
    position: Any = None
    origin: Any = None
    version: Any = None
    append_id: Any = None

    def event(self) -> Event:
        kind = {"type": self.type, "type_version": self.type_version}
        return Event(self._payload(), tags=self.tags, seq_nr=self.seq_nr, **kind)  # type: ignore[arg-type]

    def _payload(self) -> Any:
        kind, payload = self.payload_type, self.payload
        if kind == "json":
            return Json(payload)
        if kind in ("text", "binary") and not isinstance(payload, str):
            raise InvalidInput(f"a {kind} payload is a JSON string, not {msgspec.json.encode(payload).decode()[:50]}")
        if kind == "binary":
            try:
                return base64.b64decode(payload, validate=True)
            except binascii.Error as error:
                raise InvalidInput(f"the payload is not base64: {error}") from error
        return payload


_decode = msgspec.json.Decoder(Line).decode


@dataclass
class Summary:
    """What a bulk append did."""

    appended: int = 0
    failed: int = 0
    seconds: float = 0.0
    failures: list[LineFailed] = field(default_factory=list)
    positions: dict[int, Token] = field(default_factory=dict)

    def took(self, token: Token) -> None:
        self.appended += 1
        last = self.positions.get(token.partition)
        if last is None or token.offset > last.offset:
            self.positions[token.partition] = token

    def lost(self, failure: LineFailed) -> None:
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)


class BulkDraft(NamedTuple):
    """A line that has been understood."""

    number: int
    id: str
    event: Event
    options: dict[str, Any]


def understand(number: int, text: bytes) -> BulkDraft:
    """All that can be wrong with a line by itself is found here, before anything is sent."""
    try:
        line = _decode(text)
        check_id(line.id)
        options = {
            "expected": Version.parse(line.expected) if isinstance(line.expected, str) else line.expected,
            "expire_after": parse_expiry(line.expire_after),
            "metadata": line.metadata,
            "header_metadata": line.header_metadata,
            "headers": line.headers,
        }
        return BulkDraft(number, line.id, line.event(), options)
    except EverlogError as error:
        raise LineFailed(number, error) from error
    except click.UsageError as error:
        raise LineFailed(number, InvalidInput(error.format_message())) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineFailed(number, InvalidInput(str(error))) from error


class BulkAppend:
    """Appends line after line. Lines of one journal go through one lane, so that their order is kept.

    After a failure, lines before it are still appended and none after it is begun; of other journals some may have
    been appended already.
    """

    def __init__(self, journal: Journal, *, keep_going: bool) -> None:
        self._journal = journal
        self._keep_going = keep_going
        self._lanes: list[asyncio.Queue[BulkDraft | None]] = [asyncio.Queue(WAITING_PER_LANE) for _ in range(LANES)]
        self._stop_at: int | None = None
        self.summary = Summary()

    async def run(self, lines: AsyncIterator[tuple[int, bytes]]) -> Summary:
        """Append all lines; without `keep_going`, stop at the first that fails."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as workers:
            for lane in self._lanes:
                workers.create_task(self._work(lane))
            try:
                await self._deal(lines)
            except LineFailed as failure:  # the rest cannot even be read
                self._lose(failure)
            for lane in self._lanes:
                await lane.put(None)
        self.summary.seconds = time.monotonic() - started
        # Lanes run side by side: the first bad line in the file is the one to tell about.
        self.summary.failures.sort(key=lambda failure: failure.line)
        return self.summary

    async def _deal(self, lines: AsyncIterator[tuple[int, bytes]]) -> None:
        """Each line to its journal's lane; a full lane makes us wait."""
        async for number, text in lines:
            try:
                draft = understand(number, text)
            except LineFailed as failure:
                self._lose(failure)
            else:
                await self._lanes[zlib.crc32(draft.id.encode()) % LANES].put(draft)
            if self._stop_at is not None:
                return

    def _lose(self, failure: LineFailed) -> None:
        self.summary.lost(failure)
        if not self._keep_going:
            self._stop_at = failure.line if self._stop_at is None else min(self._stop_at, failure.line)

    async def _work(self, lane: asyncio.Queue[BulkDraft | None]) -> None:
        while (draft := await lane.get()) is not None:
            if self._stop_at is not None and draft.number > self._stop_at:
                continue
            try:
                self.summary.took(await self._journal.append(draft.id, draft.event, **draft.options))
            except EverlogError as error:
                self._lose(LineFailed(draft.number, error))


class LineSource:
    """The lines of a file or of standard input, as they come, with their numbers."""

    def __init__(self, name: str, *, max_line: int) -> None:
        self._stdin = name == "-"
        self._path = Path(name)
        self._max_line = max_line
        self.bytes_read = 0

    @property
    def size(self) -> int | None:
        return None if self._stdin or not self._path.is_file() else self._path.stat().st_size

    async def lines(self) -> AsyncIterator[tuple[int, bytes]]:
        """Numbered lines; empty ones are left out."""
        rest, number = b"", 0
        async for chunk in self._chunks():
            if isinstance(chunk, InvalidInput):
                raise LineFailed(number + 1, chunk)
            self.bytes_read += len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                number += 1
                if line.strip():
                    yield number, line
            if len(rest) > self._max_line:
                raise LineFailed(number + 1, InvalidInput(f"it is longer than {self._max_line:,} bytes"))
        if rest.strip():
            yield number + 1, rest

    async def _chunks(self) -> AsyncIterator[bytes | InvalidInput]:
        # A thread that may be left waiting for input: asyncio's own would keep the program from ending on Ctrl-C.
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes | InvalidInput]()
        room = threading.Semaphore(4)
        thread = threading.Thread(target=self._feed, args=(loop, queue, room), daemon=True)
        thread.start()
        while found := await queue.get():
            room.release()
            yield found

    def _feed(
        self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[bytes | InvalidInput], room: threading.Semaphore
    ) -> None:
        try:
            stream = sys.stdin.buffer if self._stdin else self._path.open("rb")
            with nullcontext() if self._stdin else stream:  # standard input is not ours to close
                while True:
                    room.acquire()
                    chunk = _read(stream)
                    loop.call_soon_threadsafe(queue.put_nowait, chunk)
                    if not chunk:
                        return
        except RuntimeError:
            return  # the loop is closed: nothing listens any more
        except OSError as error:
            failed = InvalidInput(f"{'standard input' if self._stdin else self._path} cannot be read: {error.strerror}")
            loop.call_soon_threadsafe(queue.put_nowait, failed)


def _read(stream: IO[bytes]) -> bytes:
    """What is there now, without holding the stream's lock while we wait: a pipe may be silent for long."""
    try:
        return os.read(stream.fileno(), CHUNK_BYTES)
    except (OSError, AttributeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return stream.read(CHUNK_BYTES)  # a stream without a file, in tests


async def append_lines(journal: Journal, name: str, *, keep_going: bool) -> Summary:
    """Append the lines of a file or of standard input ("-")."""
    # JSON may write a byte of a payload as six (\u0000), base64 as one and a third.
    source = LineSource(name, max_line=6 * journal.parts.config.journal.max_append_bytes + CHUNK_BYTES)
    work = BulkAppend(journal, keep_going=keep_going)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.completed:>10,.0f} {task.fields[unit]}"),
        BarColumn(),
        TextColumn("{task.fields[appended]:,} appended, {task.fields[failed]:,} failed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=source.size, unit="bytes", appended=0, failed=0)

        async def watched() -> AsyncIterator[tuple[int, bytes]]:
            async for found in source.lines():
                counts = work.summary
                progress.update(task, completed=source.bytes_read, appended=counts.appended, failed=counts.failed)
                yield found

        try:
            return await work.run(watched())
        except asyncio.CancelledError:
            # What was on its way may be in the log as well: its answer was not waited for.
            print(f"interrupted: at least {work.summary.appended:,} lines were appended", file=sys.stderr)
            raise
