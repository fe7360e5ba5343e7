"""Bodies are validated in processes of their own, whose computing time and memory the kernel limits.

A schema and a body that a client chose may keep a validator busy for hours, and it holds the interpreter meanwhile. So
no such code runs in the server: a hostile pair costs a process, never the loop. There are two processes. The quick
one takes bodies of up to 64 KiB and ends after 50 ms of computing; a schema that it gave up on goes to the thorough
one, with a second, for the next minute. So schemas that take long wait for each other, and no others wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from everlog.documents.schemas.model import SchemaViolation
from everlog.errors import Busy, InvalidDocument, MissingExtra, StorageFailed
from everlog.runtime.clock import Clock

QUICK_S = 0.05
THOROUGH_S = 1.0
MAX_QUICK_BYTES = 64 * 1024
SLOW_MEMORY_S = 60.0
MAX_WAITING = 200
MAX_KNOWN = 200
WALL_FACTOR = 20
MIN_WALL_S = 10.0
END_S = 2.0
_HEAD_BYTES = 4


class Finding(NamedTuple):
    """What is known about a body: None if it fits, else where it does not. `refused`: why the schema is none."""

    violations: Sequence[SchemaViolation] | None
    refused: str | None = None


class TooCostly(Exception):
    """The process was ended before it said whether the body fits."""


class Examiner:
    """Validates bodies; the processes are started by the first that needs them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quick = _Process("quick")
        self._thorough = _Process("thorough")
        self._slow: dict[str, float] = {}  # version -> until when the quick process is not asked

    async def try_schema(self, text: str) -> None:
        """InvalidDocument if this schema cannot be used."""
        try:
            found = await self._thorough.ask("", text, None, THOROUGH_S)
        except TooCostly:
            raise InvalidDocument(
                "schema-too-costly",
                f"reading this schema takes more than {THOROUGH_S:g} s of computing: make it smaller",
            ) from None
        if found.refused is not None:
            if found.refused.endswith('is not a "regex"'):
                raise InvalidDocument(
                    "invalid-pattern",
                    f"{found.refused} that takes linear time: no back-references, no look-around, no large repetitions",
                )
            raise InvalidDocument("invalid-schema", f"this is no JSON Schema that can be used here: {found.refused}")

    async def examine(self, version: str, schema: str, body: str) -> Finding:
        """Whether a body fits; InvalidDocument if that takes too long to say."""
        now = self._clock.monotonic()
        if len(body) <= MAX_QUICK_BYTES and self._slow.get(version, now) <= now:
            self._slow.pop(version, None)
            try:
                return await self._quick.ask(version, schema, body, QUICK_S)
            except TooCostly:
                self._slow = {known: until for known, until in self._slow.items() if until > now}
                self._slow[version] = now + SLOW_MEMORY_S
        try:
            return await self._thorough.ask(version, schema, body, THOROUGH_S)
        except TooCostly:
            raise InvalidDocument(
                "schema-too-costly",
                f"validating this body takes more than {THOROUGH_S:g} s of computing: make the body smaller, or the "
                "schema simpler",
            ) from None

    async def close(self) -> None:
        await self._quick.close()
        await self._thorough.close()


class _Process:
    """One process, asked by one thread; started again when it has ended."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._known: set[str] = set()
        self._waiting = 0

    async def ask(self, version: str, schema: str, body: str | None, seconds: float) -> Finding:
        if self._waiting >= MAX_WAITING:
            raise Busy(f"{self._waiting} bodies wait to be validated: try again later")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"everlog-schemas-{self._name}")
        self._waiting += 1
        asking = asyncio.get_running_loop().run_in_executor(
            self._thread, self._exchange, version, schema, body, seconds
        )
        asking.add_done_callback(self._answered)
        return await asyncio.shield(asking)  # a caller that gives up leaves the exchange whole

    def _answered(self, asking: asyncio.Future[Finding]) -> None:
        self._waiting -= 1
        if not asking.cancelled():
            asking.exception()  # its caller may have gone

    def _exchange(self, version: str, schema: str, body: str | None, seconds: float) -> Finding:
        from everlog.documents.schemas import engine

        child = self._running()
        known = version in self._known
        # The kernel counts computing time; a machine that is too busy to give any must not hold the line for ever.
        watchdog = threading.Timer(max(MIN_WALL_S, seconds * WALL_FACTOR), child.kill)
        watchdog.start()
        finding: Finding | None = None
        try:
            assert child.stdin is not None
            child.stdin.write(engine.frame(engine.encode((version, None if known else schema, body, seconds))))
            child.stdin.flush()
            while (answer := self._answer(child)) is not None:
                kind, places = engine.answers(answer)
                if kind == "end":
                    if version:
                        self._known.add(version)
                    return finding or Finding(None)
                finding = _finding(kind, places)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            watchdog.cancel()
        status = self._end()
        if finding is not None:
            return finding
        if status in (1, 2):  # the program itself failed: a body that takes too long is a signal, or GAVE_UP
            raise StorageFailed(
                f"the process that validates documents does not run (exit status {status}): "
                "install everlog[server] again"
            )
        raise TooCostly

    def _answer(self, child: subprocess.Popen[bytes]) -> bytes | None:
        """The next frame; None if the process has ended."""
        assert child.stdout is not None
        head = child.stdout.read(_HEAD_BYTES)
        size = int.from_bytes(head)
        data = child.stdout.read(size) if len(head) == _HEAD_BYTES else b""
        return data if data and len(data) == size else None

    def _running(self) -> subprocess.Popen[bytes]:
        if len(self._known) >= MAX_KNOWN:
            self._end()  # schemas that were replaced since are not kept for ever
        if self._child is None or self._child.poll() is not None:
            self._end()
            program = str(Path(__file__).with_name("engine.py"))
            self._child = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._child

    def _end(self) -> int | None:
        """How it ended, if it was running."""
        child, self._child = self._child, None
        self._known.clear()
        if child is None:
            return None
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        try:
            return child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()
        finally:
            child.stdout.close()

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._end)
            thread.shutdown(wait=False)


def _finding(kind: str, places: Sequence[tuple[str, str, str]]) -> Finding:
    if kind == "fits":
        return Finding(None)
    if kind == "refused":
        where, _, text = places[0]
        return Finding([], refused=f"{where}: {text}" if where else text)
    return Finding([SchemaViolation(*place) for place in places])


def need_validator() -> None:
    """MissingExtra if the library is not installed."""
    try:
        import jsonschema_rs  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra("server") from error
