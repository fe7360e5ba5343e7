"""Many streams and a steady rate of requests against a server, as a program of its own.

`python -m tests.faults.http_load URL STREAMS RATE SECONDS` prints one JSON document. Streams follow ten tags. Of ten
requests, two append an event with a tag, four read a page, three ask for a pointer, one for the status.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import httpx

TAGS = 10
JOURNALS = 50
PATIENCE = 60.0


class Load:
    def __init__(self, url: str, streams: int, rate: float, seconds: float) -> None:
        self.url = url
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

    async def follow(self, http: httpx.AsyncClient, number: int) -> None:
        """A stream from the beginning; its events say how many came before them."""
        tag = number % TAGS
        seen = self.seen[number]
        async with http.stream("GET", f"/tags/t{tag}", headers={"Accept": "text/event-stream"}) as answer:
            self.ready += 1
            async for line in answer.aiter_lines():
                if line == "event: checkpoint":
                    self.checkpoints += 1
                elif line.startswith("data: ") and '"payload"' in line:
                    seen.append(json.loads(line[6:])["payload"])
                if self.done.is_set() and len(seen) >= self.appended[tag]:
                    return
        self.cut += 1

    async def request(self, http: httpx.AsyncClient, number: int) -> None:
        began = time.perf_counter()
        journal = f"/journals/load/j-{number % JOURNALS}"
        try:
            if number % 10 < 2:
                tag = number // 10 % TAGS
                body = {"events": [{"payload": number, "tags": [f"t{tag}"]}]}
                answer = await http.post(journal, json=body)
                if answer.is_success:
                    self.appended[tag] += 1
            elif number % 10 < 6:
                answer = await http.get(f"{journal}?limit=20&reverse=true")
            elif number % 10 < 9:
                answer = await http.get(f"{journal}/pointer")
            else:
                answer = await http.get("/health/ready")
        except httpx.HTTPError as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            return
        self.latencies.append(time.perf_counter() - began)
        if answer.status_code >= 500 or answer.status_code in (401, 403, 408, 429):
            self.failures.append(f"{answer.status_code}: {answer.text[:200]}")

    async def run(self) -> dict[str, Any]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=PATIENCE, limits=limits) as streams,
            httpx.AsyncClient(base_url=self.url, timeout=PATIENCE, limits=limits) as http,
        ):
            following = [asyncio.create_task(self.follow(streams, number)) for number in range(self.streams)]
            while self.ready < self.streams:  # noqa: ASYNC110  # they are many, and each says when
                await asyncio.sleep(0.05)
            print("ready", flush=True)
            began, number = time.perf_counter(), 0
            open_: set[asyncio.Task[None]] = set()
            while (now := time.perf_counter() - began) < self.seconds:
                while number < now * self.rate:
                    task = asyncio.create_task(self.request(http, number))
                    open_.add(task)
                    task.add_done_callback(open_.discard)
                    number += 1
                await asyncio.sleep(0.005)
            if open_:
                await asyncio.wait(open_, timeout=PATIENCE)
            spent = time.perf_counter() - began
            self.done.set()
            _, late = await asyncio.wait(following, timeout=PATIENCE)
            for task in late:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
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
    _, where, streams_, rate_, seconds_ = sys.argv
    print(json.dumps(asyncio.run(Load(where, int(streams_), float(rate_), float(seconds_)).run())))
