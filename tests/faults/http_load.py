"""Many streams and a steady rate of requests against a server, as a program of its own.

`python -m tests.faults.http_load URL STREAMS RATE SECONDS` prints one JSON document. Streams follow ten tags. Of ten
requests, two append an event with a tag, four read a page, three ask for a pointer, one whether the server is ready. It
speaks HTTP by hand: a full client would need more of the machine than the server does.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any
from urllib.parse import urlsplit

TAGS = 10
JOURNALS = 50
CONNECTIONS = 32
# So many requests may wait: a machine that is slower than the rate gets fewer of them, not all of them later.
MAX_WAITING = 1000
PATIENCE = 60.0
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_PAYLOAD = re.compile(rb'"payload":(\d+)')


class Connection:
    """One request at a time, over a connection that stays open."""

    def __init__(self, host: str, port: int) -> None:
        self._where = (host, port)
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        if self._open is None:
            self._open = await asyncio.open_connection(*self._where)
        reader, writer = self._open
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(answer)
        content = await reader.readexactly(int(length[1])) if length is not None else b""
        return int(answer[9:12]), content

    async def lines(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._where)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return reader, writer

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()


class Load:
    def __init__(self, url: str, streams: int, rate: float, seconds: float) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self.where = (where.hostname, where.port)
        self.streams = streams
        self.rate = rate
        self.seconds = seconds
        self.appended: dict[int, int] = dict.fromkeys(range(TAGS), 0)
        self.seen: list[list[int]] = [[] for _ in range(streams)]
        self.checkpoints = 0
        self.ready = 0
        self.cut = 0
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self.done = asyncio.Event()
        self.waiting: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    async def follow(self, number: int) -> None:
        """A stream from the beginning; the payloads of its events are different numbers."""
        tag, seen = number % TAGS, self.seen[number]
        reader, writer = await Connection(*self.where).lines(f"/tags/t{tag}")
        self.ready += 1
        while line := await reader.readline():
            if line == b"event: checkpoint\n":
                self.checkpoints += 1
            elif line.startswith(b"data: ") and (payload := _PAYLOAD.search(line)) is not None:
                seen.append(int(payload[1]))
            if self.done.is_set() and len(seen) >= self.appended[tag]:
                writer.close()
                return
        self.cut += 1

    async def work(self) -> None:
        """Requests one after the other; a request's time runs from when it was due."""
        connection = Connection(*self.where)
        while True:
            number, due = await self.waiting.get()
            try:
                await self.request(connection, number)
                self.latencies.append(time.perf_counter() - due)
            except (OSError, EOFError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                connection = Connection(*self.where)
            finally:
                self.waiting.task_done()

    async def request(self, connection: Connection, number: int) -> None:
        journal = f"/journals/load/j-{number % JOURNALS}"
        if number % 10 < 2:
            tag = number // 10 % TAGS
            body = json.dumps({"events": [{"payload": number, "tags": [f"t{tag}"]}]}).encode()
            status, content = await connection.ask("POST", journal, body)
            self.appended[tag] += status == 201
        elif number % 10 < 6:
            status, content = await connection.ask("GET", f"{journal}?limit=20&reverse=true")
        elif number % 10 < 9:
            status, content = await connection.ask("GET", f"{journal}/pointer")
        else:
            status, content = await connection.ask("GET", "/health/ready")
        if status not in (200, 201, 404):
            self.failures.append(f"{status}: {content[:200]!r}")

    async def run(self) -> dict[str, Any]:
        following = [asyncio.create_task(self.follow(number)) for number in range(self.streams)]
        working = [asyncio.create_task(self.work()) for _ in range(CONNECTIONS)]
        while self.ready < self.streams:  # noqa: ASYNC110  # they are many, and each says when
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        began, due, number = time.perf_counter(), 0, 0
        while (now := time.perf_counter() - began) < self.seconds:
            while due < now * self.rate:
                if self.waiting.qsize() < MAX_WAITING:
                    self.waiting.put_nowait((number, began + due / self.rate))
                    number += 1
                due += 1
            await asyncio.sleep(0.005)
        await asyncio.wait_for(self.waiting.join(), PATIENCE)
        spent = time.perf_counter() - began
        self.done.set()
        _, late = await asyncio.wait(following, timeout=PATIENCE)
        for task in [*working, *late]:
            task.cancel()
        await asyncio.gather(*following, *working, return_exceptions=True)
        return self.report(number, spent, len(late))

    def report(self, sent: int, spent: float, late: int) -> dict[str, Any]:
        ordered = sorted(self.latencies) or [0.0]
        wrong = [
            number
            for number, seen in enumerate(self.seen)
            if len(seen) != self.appended[number % TAGS] or len(set(seen)) != len(seen)
        ]
        return {
            "sent": sent,
            "answered": len(self.latencies),
            "per_second": round(len(self.latencies) / spent, 1),
            "p50_ms": round(ordered[len(ordered) // 2] * 1000, 1),
            "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1000, 1),
            "failures": self.failures[:10],
            "failed": len(self.failures),
            "events": sum(map(len, self.seen)),
            "checkpoints": self.checkpoints,
            "cut": self.cut,
            "late": late,
            "incomplete_streams": wrong[:10],
        }


if __name__ == "__main__":
    _, url_, streams_, rate_, seconds_ = sys.argv
    print(json.dumps(asyncio.run(Load(url_, int(streams_), float(rate_), float(seconds_)).run())))
