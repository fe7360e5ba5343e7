"""A client that sends the worst that it can think of, as a program of its own.

`python -m tests.faults.hostile_client URL` reads commands from its standard input: `go` begins, with all kinds or with
those that follow; `calm` begins a harmless load that costs the same: as many requests a second as the last hostile
phase had, for what is small, and as much computing of its own. `stop` gives up what is under way and prints what came
back, by kind and status, and what it cost, as one line of JSON. Each kind has a fixed number of workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

BIG = "/hyper-storage/content/big~"
NUMBERS = 10_000
LONGEST_S = 20.0  # for one request: then the next one
HALF_OPEN, FEEDS = 200, 50
SLICE_S = 0.002

# What a query may ask of elements with lists of 10,000 numbers, and texts of 100 KB.
FILTERS = (
    "l has l",
    "l has m and m has l",
    "l + m + l + m has 3 or l + l = m + m",
    " or ".join(["l has m"] * 99),
    "t + t + t + t + t + t + t + t like 'x(a+)+$'",
    "t like '(a|a?)+$' or t like '(.*a){20}'",
    "split(t + t + t, 'a') has split(t + t, 'a')",
    "upper(lower(upper(lower(upper(t + t + t + t))))) = t",
    "l = l and m = m and l != m",
    "9999999999999999999999999 * 9999999999999999999999999 * 9999999999 * n % 7 = 3",
    "(" * 1500 + "a" + ")" * 1500,
    "!" * 4000 + "a",
    " and ".join(f"l has {number}" for number in range(400)),
    "format_unix_time(n, 'yyyy-MM-dd HH:mm:ss.SSSZ', 'Europe/Berlin') like '.*.*.*.*.*'",
    "index_of(t + t + t, 'aaaaaaaaaaaaaaaaaaaaaaab') > 0",
    "compare_ignoring_case(t + t + t + t, t + t + t + t) = 0",
    '"\x00' * 200,
    "l has [l, m, [l, m], {'a': l}]",
)

Headers = dict[str, str]


class HostileClient:
    """The workers of one phase at a time."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._where = (where.hostname, where.port)
        self._host = f"{where.hostname}:{where.port}"
        self._chance = random.Random(1)
        self._seen: Counter[str] = Counter()
        self._workers: list[asyncio.Task[None]] = []
        self._began = (0.0, 0.0)
        self._is_calm = False
        self._rate = self._share = 0.0

    def go(self, names: Sequence[str]) -> None:
        kinds: dict[Callable[[], Awaitable[str]], int] = {
            self.bad_filter: 3,
            self.bad_sort: 1,
            self.bad_definition: 1,
            self.bad_body: 2,
            self.bad_bulk: 1,
            self.slow_body: 2,
            self.bad_head: 1,
            self.half_open: HALF_OPEN,
            self.lazy_feed: FEEDS,
            self.lazy_live: FEEDS // 5,
            self.lazy_changes: FEEDS // 5,
            self.long_past: 2,
            self.early_end: 2,
        }
        for kind, count in kinds.items():
            if not names or kind.__name__ in names:
                self._workers += [asyncio.create_task(self._repeat(kind)) for _ in range(count)]
        self._is_calm = False
        self._began = time.perf_counter(), time.process_time()

    def calm(self) -> None:
        self._workers.append(asyncio.create_task(self._calm()))
        self._is_calm = True
        self._began = time.perf_counter(), time.process_time()

    async def stop(self) -> dict[str, Any]:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers.clear()
        seen, self._seen = dict(self._seen), Counter()
        seconds, spent = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        rate, share = sum(seen.values()) / seconds, spent / seconds
        if not self._is_calm:
            self._rate, self._share = rate, share
        return {"seen": seen, "rate": round(rate, 1), "share": round(share, 3)}

    async def _calm(self) -> None:
        """Small requests at the rate of the last phase, and computing until that costs as much as it did."""
        began, spent = self._began
        number = 0
        while True:
            now = time.perf_counter()
            while number < (now - began) * self._rate:
                number += 1
                self._seen[f"calm {await self._send(self._request('GET', '/hyper-storage/content/good~/e-0'))}"] += 1
            until = time.perf_counter() + SLICE_S
            while time.process_time() - spent < (now - began) * self._share and time.perf_counter() < until:
                pass
            await asyncio.sleep(SLICE_S)

    async def _repeat(self, kind: Callable[[], Awaitable[str]]) -> None:
        while True:
            try:
                async with asyncio.timeout(LONGEST_S):
                    outcome = await kind()
            except (OSError, EOFError, TimeoutError) as error:
                outcome = type(error).__name__
            self._seen[f"{kind.__name__} {outcome}"] += 1
            await asyncio.sleep(0.01)

    async def _send(self, data: bytes) -> str:
        """Bytes as they are; the status of the answer."""
        reader, writer = await asyncio.open_connection(*self._where)
        try:
            writer.write(data)
            await writer.drain()
            line = await reader.readline()
            return line[9:12].decode() or "closed"
        finally:
            writer.close()

    def _request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        lines = {"Host": self._host, "Content-Length": str(len(body)), "Connection": "close"} | headers
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body

    async def bad_filter(self) -> str:
        text = quote(self._chance.choice(FILTERS))
        return await self._send(self._request("GET", f"{BIG}?filter={text}&size=1000"))

    async def bad_sort(self) -> str:
        fields = ",".join(self._chance.choice(["l", "t", "-m", "n.a.b", "-id"]) for _ in range(20))
        return await self._send(self._request("GET", f"{BIG}?sort={fields}&size=10000"))

    async def bad_definition(self) -> str:
        """An index or a view whose filter costs much; nothing of it may hold back the collection."""
        number, text = self._chance.randrange(5), self._chance.choice(FILTERS[:6])
        if self._chance.random() < 0.5:
            body = {"indexId": f"i{number}", "sortBy": [{"fieldName": "t"}, {"fieldName": "l"}], "filterBy": text}
            return await self._send(self._request("POST", "/hyper-storage/indexes/big~", json.dumps(body).encode()))
        body = {"template_uri": "big~/{*}", "filter": text}
        return await self._send(self._request("PUT", f"/hyper-storage/views/bad{number}~", json.dumps(body).encode()))

    async def bad_body(self) -> str:
        bodies = (
            b'{"a":' * 5000 + b"1" + b"}" * 5000,
            b"[" * 100_000,
            b"[" + b"1," * 400_000 + b"1]",
            b'{"n": ' + b"9" * 100_000 + b"}",
            b'{"n": 1e999999999}',
            b'{"s": "' + b"\\ud800" * 100_000 + b'"}',
            b"{" + b",".join(b'"k%d": [[[]]]' % number for number in range(50_000)) + b"}",
            b"\xff\xfe" * 1000,
            b'{"a": NaN, "b": Infinity}',
        )
        body = self._chance.choice(bodies)
        method = self._chance.choice(["PUT", "PATCH"])
        return await self._send(self._request(method, "/hyper-storage/content/bad/body", body))

    async def slow_body(self) -> str:
        """A byte now and then."""
        reader, writer = await asyncio.open_connection(*self._where)
        try:
            writer.write(self._request("PUT", "/hyper-storage/content/bad/slow", Content_Length="1000"))
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.3)
            return "closed"
        finally:
            writer.close()

    async def bad_head(self) -> str:
        heads = (
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"PUT /hyper-storage/content/x HTTP/1.1\r\nHost: a\r\n"
            b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"PUT /hyper-storage/content/x HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET /hyper-storage/content/../../journals HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )
        return await self._send(self._chance.choice(heads))

    async def half_open(self) -> str:
        """Nothing, or a part of a head."""
        reader, writer = await asyncio.open_connection(*self._where)
        try:
            writer.write(self._chance.choice([b"", b"GET /hyper-sto", b"GET / HTTP/1.1\r\nHost: a\r\n"]))
            await reader.read()
            return "closed"
        finally:
            writer.close()

    async def lazy_feed(self) -> str:
        """A feed that is never read."""
        return await self._lazily(f"{BIG}?feed", self._chance.choice(["0", "1", "99999999"]))

    async def _lazily(self, path: str, after: str) -> str:
        """A stream that is never read."""
        reader, writer = await asyncio.open_connection(*self._where, limit=1024)
        try:
            writer.write(self._request("GET", path, **({"Last_Event_ID": after} if after else {})))
            line = await reader.readline()
            if line[9:12] == b"200":
                await asyncio.sleep(LONGEST_S / 2)
            return line[9:12].decode() or "closed"
        finally:
            writer.close()

    async def lazy_live(self) -> str:
        """A live query of costly elements with a costly filter."""
        return await self._lazily(f"{BIG}?live&filter={quote(self._chance.choice(['', 'n > 0', *FILTERS[:6]]))}", "")

    async def lazy_changes(self) -> str:
        """All changes of all documents, from the beginning."""
        text = quote(self._chance.choice(["", "n > 0", *FILTERS[:6]]))
        return await self._lazily(f"/hyper-storage/feed?filter={text}", self._chance.choice(["0", ""]))

    async def long_past(self) -> str:
        """What was, as much of it as there is."""
        path = self._chance.choice(
            [f"{BIG}?history&size=1000", f"{BIG}?history=reverse&size=1000", f"{BIG}?at=15&size=1000", f"{BIG}?at=20"]
        )
        return await self._send(self._request("GET", path))

    async def bad_bulk(self) -> str:
        """Many lines, most of them wrong, some of them large; of one collection, which others do not use."""
        lines = [b'{"method":"put","path":"bad~/%d","body":{"a":[%s1]}}' % (n, b"1," * 50_000) for n in range(2)]
        lines += [b'{"method":"patch","path":"bad~/none%d","body":{}}' % n for n in range(300)]
        lines += [b"{" * 50_000, b'{"method":"fetch"}', b"\xff" * 1000] * 10
        self._chance.shuffle(lines)
        return await self._send(self._request("POST", "/hyper-storage/_bulk", b"\n".join(lines)))

    async def early_end(self) -> str:
        """Asks for much and goes away."""
        reader, writer = await asyncio.open_connection(*self._where)
        del reader
        writer.write(self._request("GET", f"{BIG}?size=10000"))
        with contextlib.suppress(OSError):
            await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await asyncio.sleep(0.5)
        return "gone"


async def run(url: str) -> None:
    client = HostileClient(url)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while command := await commands.readline():
        word, *names = command.decode().split()
        if word == "go":
            client.go(names)
        elif word == "calm":
            client.calm()
        else:
            print(json.dumps(await client.stop()), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
