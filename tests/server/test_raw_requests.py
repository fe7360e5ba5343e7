"""Requests byte by byte: whatever h11 refuses is refused, and a request means one thing however its bytes arrive."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import h11
import httpx
import msgspec
import pytest
import uvicorn
from uvicorn.server import ServerState

from everlog.config import Config, ServerConfig
from everlog.server.protocol import BoundedProtocol, bounded
from tests.http_support import send, server
from tests.support import small_config

C = "/hyper-storage/content/"
HEAD_BYTES = 2048
HOST = b"Host: localhost\r\n"
LINE = b"PUT /hyper-storage/content/hidden HTTP/1.1\r\n"
CHUNKED = LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def http(tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    settings = ServerConfig(max_header_bytes=HEAD_BYTES, header_timeout_s=60, body_timeout_s=60, send_timeout_s=60)
    config: Config = msgspec.structs.replace(small_config(tmp_path / "data"), server=settings)
    async with server(config) as (_, client):
        yield client


async def exchange(http: httpx.AsyncClient, sent: bytes) -> bytes:
    """All that a server answers until it closes the connection: to what it refuses, or what asks for it."""
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    try:
        async with asyncio.timeout(30):
            writer.write(sent)
            return await reader.read()
    finally:
        writer.close()


def statuses(answers: bytes) -> list[int]:
    """Of some answers behind one another."""
    found = []
    parser = h11.Connection(h11.CLIENT)
    parser.receive_data(answers)
    while answers:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(answers)
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                parser.receive_data(b"")
            elif isinstance(event, h11.Response):
                found.append(event.status_code)
        answers = parser.trailing_data[0]
    return found


HEADS = {
    "an older version without headers": b"GET /health/live\r\n\r\n",
    "an older version": b"GET /health/live HTTP/0.9\r\n" + HOST + b"\r\n",
    "a version that is none here": b"GET /health/live HTTP/2.0\r\n" + HOST + b"\r\n",
    "the preface of another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health/live HTTP/1.1\r\n" + 2 * HOST + b"\r\n",
    "two hosts in HTTP/1.0": b"GET /health/live HTTP/1.0\r\n" + 2 * HOST + b"\r\n",
    "an empty line before": b"\r\n" + LAST,
    "a space before": b" " + LAST,
    "two spaces": b"GET  /health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tab as separator": b"GET\t/health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "a space behind the version": b"GET /health/live HTTP/1.1 \r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a line that goes on": LINE + HOST + b"Content-Length: 1\r\nX: a\r\n b\r\n\r\n1",
    "a length that goes on": LINE + HOST + b"Content-Length:\r\n 1\r\n\r\n1",
    "a line feed alone": LINE + HOST + b"Content-Length: 1\r\nX: a\nY: b\r\n\r\n1",
    "line feeds alone": (LINE + HOST + b"Content-Length: 1\r\n\r\n1").replace(b"\r\n", b"\n"),
    "a last line feed alone": LINE + HOST + b"Content-Length: 1\r\n\n1",
    "a carriage return alone": LINE + HOST + b"Content-Length: 1\r\nX: a\rY: b\r\n\r\n1",
    "a space before a colon": LINE + HOST + b"Content-Length : 1\r\n\r\n1",
    "a header without a name": LINE + HOST + b"Content-Length: 1\r\n: a\r\n\r\n1",
    "a header without a colon": LINE + HOST + b"Content-Length: 1\r\nXa\r\n\r\n1",
    "a null": LINE + HOST + b"Content-Length: 1\r\nX: a\x00b\r\n\r\n1",
    "an encrypted beginning": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no length": LINE + HOST + b"Content-Length: \r\n\r\n1",
    "a hexadecimal length": LINE + HOST + b"Content-Length: 0x1\r\n\r\n1",
    "a length in two words": LINE + HOST + b"Content-Length: 1 1\r\n\r\n1",
    "a length beyond all": LINE + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n1",
    "three lengths": LINE + HOST + b"Content-Length: 1\r\ncontent-length: 1\r\nCONTENT-LENGTH: 2\r\n\r\n1",
    "one length in two spellings": LINE + HOST + b"Content-Length: 1\r\nContent-Length: 01\r\n\r\n1",
    "an encoding that is none": LINE + HOST + b"Transfer-Encoding: identity\r\n\r\n",
    "an encoding in chunks": LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
    "chunks twice": LINE + HOST + b"Transfer-Encoding: chunked, chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
    "chunks with a tab between": LINE + HOST + b"Transfer-Encoding: chun\tked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
    "a chunk and a length": LINE + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n1\r\n1\r\n0\r\n\r\n",
    "an upgrade with both": LINE
    + (HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
    + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n1\r\n1\r\n0\r\n\r\n",
}

CHUNKS = {
    "no size": b"\r\n1\r\n0\r\n\r\n",
    "a space before the size": b" 1\r\n1\r\n0\r\n\r\n",
    "a hexadecimal sign": b"0x1\r\n1\r\n0\r\n\r\n",
    "a sign": b"+1\r\n1\r\n0\r\n\r\n",
    "a minus": b"-1\r\n1\r\n0\r\n\r\n",
    "an underscore": b"1_0\r\n1\r\n0\r\n\r\n",
    "a size beyond all": b"fffffffffffffffff\r\n1\r\n0\r\n\r\n",
    "a line feed behind the size": b"1\n1\r\n0\r\n\r\n",
    "a line feed behind the data": b"1\r\n1\n0\r\n\r\n",
    "line feeds at the end": b"1\r\n1\r\n0\n\n",
    "more data than said": b"1\r\n11\r\n0\r\n\r\n",
    "a line feed in an extension": b"1;a\n1\r\n0\r\n\r\n",
    "a trailer that is none": b"1\r\n1\r\n0\r\nX a\r\n\r\n",
    "a length as a trailer": b"1\r\n1\r\n0\r\nContent-Length: 5\r\n\r\n",
}


async def test_what_is_no_request_is_400(http):
    """And nothing behind it is looked at; nothing of it is stored."""
    for name, sent in (HEADS | {name: CHUNKED + chunks for name, chunks in CHUNKS.items()}).items():
        answer = await exchange(http, sent + LAST)
        assert statuses(answer) == [400], (name, answer)
        assert b"connection: close" in answer.lower(), name
    assert (await http.get(C + "hidden")).status_code == 404


async def test_what_cannot_become_a_request_is_refused_at_once(http):
    """Without the end of a head, for which the server would wait."""
    for sent in (
        b"\x16\x03\x01",
        b"\r\n",
        b" GET",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET / HTTP/1.1\r\nX: a\r\n\n",
    ):
        assert statuses(await exchange(http, sent)) == [400], sent


def refused_by_h11(sent: bytes) -> bool:
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(sent)
    try:
        while parser.next_event() not in (h11.NEED_DATA, h11.PAUSED):
            pass
    except h11.RemoteProtocolError:
        return True
    return False


PLACES = {
    "before": b"%bGET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "method": b"GE%bT /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "separator": b"GET%b/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "target": b"GET /health/l%bive HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "version": b"GET /health/live HTTP/1.%b\r\nHost: localhost\r\n\r\n",
    "behind the line": b"GET /health/live HTTP/1.1%b\r\nHost: localhost\r\n\r\n",
    "name": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX%bY: a\r\n\r\n",
    "behind the name": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX%b: a\r\n\r\n",
    "value": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: a%bb\r\n\r\n",
    "behind the value": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: a%b\r\n\r\n",
    "length": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0%b\r\n\r\n",
    "chunk": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0%b\r\n\r\n",
}


async def test_each_byte_in_each_place(http):
    """Where h11 refuses a byte, so does this server: with 400, or because the method is none."""
    for place, sent in PLACES.items():
        refused = [byte for byte in range(256) if refused_by_h11(sent % bytes([byte]))]
        assert len(refused) > 3, place
        for byte in refused:
            answers = statuses(await exchange(http, sent % bytes([byte]) + LAST))
            assert 400 in answers, (place, byte, answers)


async def test_a_head_has_a_limit_to_the_byte(http):
    """Whether or not it is whole; what fits is answered."""
    start = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    whole = start + b"a" * (HEAD_BYTES - len(start) - 4) + b"\r\n\r\n"
    assert statuses(await exchange(http, whole)) == [200]
    assert statuses(await exchange(http, start + b"a" + whole[len(start) :])) == [431]
    assert statuses(await exchange(http, start + b"a" * HEAD_BYTES)) == [400]
    assert statuses(await exchange(http, b"GET /" + b"a" * HEAD_BYTES)) == [400]
    assert statuses(await exchange(http, LAST.replace(b"Connection: close\r\n", b"") + start + b"a" * HEAD_BYTES)) == [
        200,
        400,
    ]


async def test_an_upgrade_is_a_wish(http):
    """Java's client asks for HTTP/2 with its first request, also with one that has a body: that is stored."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    for name, body in (
        ("sized", b"Content-Length: 3\r\n\r\n123"),
        ("chunks", CHUNKED[-30:] + b"3\r\n123\r\n0\r\n\r\n"),
    ):
        line = f"PUT {C}{name} HTTP/1.1\r\n".encode()
        assert statuses(await exchange(http, line + HOST + wish + body + LAST)) == [201, 200]
        assert (await send(http, "GET", C + name)).json() == 123
    read = f"GET {C}sized HTTP/1.1\r\n".encode()
    assert statuses(await exchange(http, read + HOST + wish + b"\r\n" + LAST)) == [200, 200]


async def test_requests_behind_one_another_are_answered_in_turn(http):
    """However many, and whatever they end in: an answer is never behind what answers a later one."""
    put = f"PUT {C}n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n".encode()
    many = b"".join(put + b"1%03d" % number for number in range(300))
    assert statuses(await exchange(http, many + LAST)) == [201] + [200] * 300
    assert (await send(http, "GET", C + "n")).headers["revision"] == "300"
    assert statuses(await exchange(http, put + b"1111" + b"GARBAGE\r\n\r\n" + LAST)) == [200, 400]


async def test_a_trailer_is_no_header_of_the_next_request(http):
    await send(http, "PUT", C + "a", 1, 201)
    then = f"GET {C}a HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for trailers in (
        b"If-None-Match: *\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"X:\r\n",
    ):
        first = CHUNKED + b"1\r\n1\r\n0\r\n" + trailers + b"\r\n"
        assert statuses(await exchange(http, first + then + LAST))[1:] == [200, 200], trailers


async def test_only_a_connection_header_ends_a_connection(http):
    """`Proxy-Connection` is for others; `close` may be one of several words."""
    first = b"GET /health/live HTTP/1.1\r\n" + HOST + b"%b\r\n\r\n"
    assert statuses(await exchange(http, first % b"Proxy-Connection: close" + LAST)) == [200, 200]
    assert statuses(await exchange(http, first % b"Connection: closed, keep-alive" + LAST)) == [200, 200]
    assert statuses(await exchange(http, first % b"Connection: x, CLOSE" + LAST)) == [200]
    assert statuses(await exchange(http, first.replace(b"1.1", b"1.0") % b"Connection: keep-alive" + LAST)) == [200]


async def test_spaces_around_a_value_are_none_of_it(http):
    tag = (await send(http, "PUT", C + "a", 1, 201)).headers["etag"].encode()
    head = f"GET {C}a HTTP/1.1\r\n".encode() + HOST + b"X:\r\nIf-None-Match: \t" + tag + b" \t \r\n\r\n"
    assert (await exchange(http, head + LAST)).startswith(b"HTTP/1.1 304")


async def test_a_fault_in_the_middle_of_an_answer_ends_it(http):
    """The answers to the lines before stand; nothing else follows them, as a client would take it for more of them."""
    line = b'{"method":"put","path":"m","body":1}\n'
    head = b"POST /hyper-storage/_bulk HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    async with asyncio.timeout(30):
        writer.write(head + b"%x\r\n%b\r\n" % (len(line), line))
        begun = await reader.readuntil(b'"status"')
        writer.write(b"GARBAGE\r\n" + LAST)
        rest = await reader.read()
    writer.close()
    assert begun.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1" not in rest
    assert not rest.endswith(b"0\r\n\r\n"), "the answer has no end"


# A request in pieces


class Seen(asyncio.Event):
    """An application that keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, bytes, Any, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.requests.append((scope["method"], scope["raw_path"], scope["headers"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def connection(app: Any) -> AsyncIterator[tuple[BoundedProtocol, asyncio.StreamReader]]:
    """A real connection whose bytes reach the protocol in pieces of the test's choice."""
    config = uvicorn.Config(app, http=bounded(HEAD_BYTES, 60, 60, lambda: None), ws="none", log_config=None)
    config.load()
    loop, (near, far) = asyncio.get_running_loop(), socket.socketpair()
    near.setblocking(False)
    _, protocol = await loop.connect_accepted_socket(
        lambda: config.http_protocol_class(config=config, server_state=ServerState(), app_state={}),  # type: ignore
        near,
    )
    reader, writer = await asyncio.open_connection(sock=far)
    try:
        yield protocol, reader
    finally:
        writer.close()
        protocol.transport.abort()


SEVERAL = (
    b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1\r\n\r\n2345"
    b"PUT /b?c=d HTTP/1.1\r\nHost: b\r\nX: y \r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5;x="y"\r\n\r\n\r\n1\r\n2\r\n\r\n\r\n0\r\nT: u\r\n\r\n'
    b"GET /e HTTP/1.1\r\nHost: c\r\n\r\n"
)
EXPECTED = [
    ("PUT", b"/a", [(b"host", b"a"), (b"content-length", b"9")], b"1\r\n\r\n2345"),
    ("PUT", b"/b", [(b"host", b"b"), (b"x", b"y"), (b"transfer-encoding", b"chunked")], b"\r\n\r\n1\r\n"),
    ("GET", b"/e", [(b"host", b"c")], b""),
]


def pieces(size: int) -> Iterable[list[bytes]]:
    """All ways to cut the requests in two, and into equal pieces."""
    for at in range(1, len(SEVERAL)):
        yield [SEVERAL[:at], SEVERAL[at:]]
    for length in range(1, size):
        yield [SEVERAL[at : at + length] for at in range(0, len(SEVERAL), length)]


async def test_requests_mean_the_same_however_they_are_cut():
    answer_bytes = 3
    for cut in pieces(40):
        seen = Seen()
        async with connection(seen) as (protocol, reader), asyncio.timeout(30):
            for piece in cut:
                protocol.data_received(piece)
                for _ in range(5):  # what is whole by now is answered before the next piece comes
                    await asyncio.sleep(0)
            for _ in range(answer_bytes):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), cut
        assert seen.requests == EXPECTED, cut


@pytest.mark.parametrize("begun", [b"1;", b"1\r\n1\r\n0\r\nX: ", b"1\r\n1\r\n1;", b"1\r\n1\r\n0\r\nX"])
async def test_what_is_around_a_body_has_a_limit(begun):
    """An extension or a trailer without an end is not kept for ever."""
    async with connection(Seen()) as (protocol, reader), asyncio.timeout(30):
        protocol.data_received(CHUNKED + begun)
        protocol.data_received(b"a" * (HEAD_BYTES - 200))
        assert not protocol.transport.is_closing()
        protocol.data_received(b"a" * 201)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")


async def test_one_request_at_a_time_is_handed_over():
    """What stands behind it waits as bytes, and no more of it is read."""
    go, begun = asyncio.Event(), 0

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += 1
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with connection(slow) as (protocol, reader), asyncio.timeout(30):
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun == 1
        assert protocol.flow.read_paused
        go.set()
        for _ in range(1000):
            await reader.readuntil(b"\r\n\r\n")
    assert begun == 1000
