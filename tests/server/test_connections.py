"""Connections that end in two ways, that wait for nothing, and paths that a client would take for another one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import msgspec
import pytest

from everlog.config import Config, ServerConfig
from everlog.documents.paths import parse_path
from everlog.errors import InvalidDocument
from tests.http_support import send, server
from tests.support import small_config
from tests.waiting import until

PLACES = 12
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
C = "/hyper-storage/content/"


@pytest.fixture
async def http(tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    """A server with few places, and patience."""
    settings = ServerConfig(max_connections=PLACES, header_timeout_s=60, body_timeout_s=60, send_timeout_s=60)
    config: Config = msgspec.structs.replace(small_config(tmp_path / "data"), server=settings)
    async with server(config) as (_, client):
        yield client


class Peer:
    """A connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, sent: bytes) -> bytes:
        """The head of an answer, and its body if it says how long that is."""
        self.writer.write(sent)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return head + (await self.reader.readexactly(int(length[0].split(b":")[1])) if length else b"")

    async def is_cut(self) -> bool:
        """Whether the server ends this connection without another answer; only asked of those that it should."""
        try:
            async with asyncio.timeout(20):
                return b"HTTP/1.1" not in await self.reader.read()
        except ConnectionError:
            return True


async def connected(stack: AsyncExitStack, http: httpx.AsyncClient, sent: bytes = b"") -> Peer:
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    stack.callback(writer.close)
    if sent:
        writer.write(sent)
        await writer.drain()
    return Peer(reader, writer)


HEADS = [
    (b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"400"),
    (b"Transfer-Encoding: chunked\r\nContent-Length: 4", b"400"),
    (b"TRANSFER-ENCODING: Chunked\r\ncontent-length: 0", b"400"),
    (b"Content-Length: 4\r\nContent-Length: 5", b"400"),
    (b"Content-Length: 4, 5", b"400"),
    (b"Content-Length: -4", b"400"),
    (b"Content-Length: +4", b"400"),
    (b"Content-Length: 4_0", b"400"),
    (b"Transfer-Encoding: gzip, chunked", b"400"),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"400"),
    (b"Transfer-Encoding : chunked", b"400"),
    (b"Content-Length: 4\r\nContent-Length: 4", b"201"),
    (b"Content-Length: 4", b"201"),
]


async def test_a_body_ends_in_one_way_only(http):
    """What stands behind such a request is never taken for another one: the connection is closed."""
    hidden = "0\r\n\r\nPUT /hyper-storage/content/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
    async with AsyncExitStack() as stack:
        for number, (head, status) in enumerate(HEADS):
            peer = await connected(stack, http)
            start = f"PUT {C}{number} HTTP/1.1\r\nHost: localhost\r\n".encode() + head + b"\r\n\r\n"
            answer = await peer.ask(start + (b"1234" if status == b"201" else hidden.encode()))
            assert answer.split(b" ", 2)[1] == status, (head, answer)
            if status == b"400":
                assert b"connection: close" in answer.lower(), head
                assert await peer.is_cut(), head
                assert (await http.get(f"{C}{number}")).status_code == 404, head
    assert (await http.get(C + "smuggled")).status_code == 404


async def test_an_old_version_has_no_chunks(http):
    async with AsyncExitStack() as stack:
        peer = await connected(stack, http)
        head = b"PUT /hyper-storage/content/a HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await peer.ask(head + b"1\r\n1\r\n0\r\n\r\n")).split(b" ", 2)[1] == b"400"


async def test_connections_that_wait_take_no_place_from_those_at_work(http):
    """Many times as many as there are places, with nothing or half a head: others are served, streams go on."""
    await send(http, "PUT", C + "a~/1", {}, 201)
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(3):
            stream = await connected(stack, http)
            stream.writer.write(f"GET {C}a~?feed&after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert b"200" in await stream.reader.readuntil(b"feed:put")
            streams.append(stream)
        waiting = []
        for number in range(8 * PLACES):
            half = b"" if number % 2 else b"GET /health/live HTTP/1.1\r\nHost: loc"
            waiting.append(await connected(stack, http, half))
            if number % PLACES == 0:
                fresh = await connected(stack, http)
                assert (await fresh.ask(GET)).startswith(b"HTTP/1.1 200"), number
                fresh.writer.close()
        for peer in waiting[: 6 * PLACES]:
            assert await peer.is_cut(), "the oldest give way"
        answer = await waiting[-1].ask(GET)
        assert answer.startswith(b"HTTP/1.1 200"), "and the newest do not"
        await send(http, "PUT", C + "a~/2", {}, 201)
        for stream in streams:
            await stream.reader.readuntil(b"a~/2")


async def test_one_that_has_never_asked_gives_way_before_one_that_has(http):
    async with AsyncExitStack() as stack:
        known = await connected(stack, http)
        assert (await known.ask(GET)).startswith(b"HTTP/1.1 200")
        silent = [await connected(stack, http) for _ in range(2 * PLACES)]
        assert await silent[0].is_cut()
        assert (await known.ask(GET)).startswith(b"HTTP/1.1 200")


async def test_where_all_are_at_work_a_further_request_is_503(http):
    """Its connection stays below the limit; as soon as one has ended, there is room again."""
    await send(http, "PUT", C + "a~/1", {}, 201)
    async with AsyncExitStack() as stack:
        feed = f"GET {C}a~?feed&after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        streams = [await connected(stack, http, feed) for _ in range(PLACES - 2)]
        for stream in streams:
            await stream.reader.readuntil(b"feed:put")
        answers = [await (await connected(stack, http)).ask(GET) for _ in range(3)]
        assert [answer.split(b" ", 2)[1] for answer in answers] == [b"200"] * 3, "idle ones give way to the next"
        more = [await connected(stack, http, feed) for _ in range(3)]
        heads = [await peer.reader.readuntil(b"\r\n") for peer in more]
        assert any(b"503" in head for head in heads)
        for stream in [*streams, *more]:
            stream.writer.close()

        async def served() -> bool:
            return (await (await connected(stack, http)).ask(GET)).startswith(b"HTTP/1.1 200")

        await until(served)


DOTS = [
    *("../a", "a/../b", "a/./b", "./a", "a/..", "a/.", "..", ".", "c~/..", "c~/."),
    *("a/%2e%2e/b", "a/%2E./b", "%2e", "a%2F..%2Fb"),
]


async def test_segments_that_others_resolve_are_refused(http):
    """Plain and percent-encoded: a proxy or a client might see another path than this server."""
    async with AsyncExitStack() as stack:
        for path, method in itertools.product(DOTS, (b"GET", b"PUT", b"DELETE")):
            peer = await connected(stack, http)
            head = method + f" {C}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()
            answer = await peer.ask(head + (b"1\r\n\r\n1" if method == b"PUT" else b"0\r\n\r\n"))
            assert answer.split(b" ", 2)[1] == b"400", answer
            assert b"invalid-path" in answer


@pytest.mark.parametrize("path", ["...", "a/...", "a..b", ".a", "a.", "..a/b", "c~/.x", "a/b..", "c~/1."])
def test_other_dots_are_names(path):
    assert parse_path(path).path == path


@pytest.mark.parametrize("path", [".", "..", "a/.", "a/..", "./a", "../a", "a/./b", "a/../b", "c~/.", "c~/.."])
def test_dots_alone_are_none(path):
    with pytest.raises(InvalidDocument, match=r"'\.' and '\.\.'"):
        parse_path(path)
