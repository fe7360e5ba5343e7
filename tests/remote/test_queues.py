"""Queues of a server: the suite for stores over HTTP, workers, and what happens when the server is away."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar
from litestar.datastructures import State

import everlog
from everlog.config.scopes import ALL
from everlog.console.server import serving
from everlog.errors import (
    AnswerLost,
    DeclarationRefused,
    InvalidInput,
    InvalidKey,
    InvalidPriority,
    KeyBusy,
    LeaseLost,
    PayloadTooLarge,
    QueueNotFound,
    StorageFailed,
    Unreachable,
)
from everlog.queues import heartbeat
from everlog.queues import worker as worker_module
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import (
    Claim,
    FireSchedules,
    Handle,
    PauseSchedule,
    Peek,
    Put,
    Release,
    RemoveSchedule,
    SetSchedule,
)
from everlog.queues.queue import Queue
from everlog.queues.rows import Packet
from everlog.queues.schedule import ScheduleRow
from everlog.queues.wire import encode_operations
from everlog.remote import queues as remote_queues
from everlog.remote.queues import RemoteQueueStore
from everlog.runtime.clock import SystemClock
from everlog.server.routes.queues import QUEUE_ROUTES
from everlog.server.security.principal import Principal
from everlog.testing.queue_desk import HOUR, VirtualClock, VirtualQueue
from tests.models.queue_cases import QueueCases
from tests.support import small_config
from tests.waiting import until


class Clock(VirtualClock):
    """Virtual time, real ids."""

    def new_id(self) -> str:
        return str(uuid.uuid4())


class Served(RemoteQueueStore):
    """A client of a server without a socket between them; the server's queues are in memory."""

    def __init__(self, app: Litestar, clock: Clock, sweep: int) -> None:
        transport = httpx.ASGITransport(app=app)
        super().__init__(httpx.AsyncClient(transport=transport, base_url="http://queues"), clock, owns_client=True)
        self.inner = MemoryQueueStore(clock, sweep=sweep)
        app.state.log = SimpleNamespace(
            queues=self.inner,
            queue=lambda name: Queue(name, self.inner),
            parts=SimpleNamespace(clock=clock),
        )

    def sibling(self) -> RemoteQueueStore:
        return RemoteQueueStore(self._http, self.clock)

    def counted(self, name: str) -> Counter[str]:
        return self.inner.counted(name)


@pytest.fixture(scope="module")
def app() -> Litestar:
    """The routes of queues alone; whoever asks is an administrator, and nobody notes what they do."""

    async def let_in(connection: Any, _: Any) -> None:
        connection.scope["state"] |= {"principal": Principal("me", ALL), "operation": None}

    state = State({"new_error_id": lambda: str(uuid.uuid4()), "stopping": asyncio.Event()})
    return Litestar(QUEUE_ROUTES, guards=[let_in], state=state, openapi_config=None, logging_config=None)


class TestRemoteStore(QueueCases):
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def make_store(self, app):
        async def make(clock, *, sweep=500):
            return Served(app, clock, sweep)

        return make

    async def test_keys_with_the_same_hash_are_two_jobs(self, desk: VirtualQueue) -> None:
        """A client may not choose the hash: a wrong one would hide a job from all others."""
        with pytest.raises(InvalidKey, match="hash"):
            await desk.enq("a", key_hash=b"h" * 16)


@pytest.fixture
async def server(tmp_path):
    """A log, and a client of its server."""
    async with (
        everlog.connect(small_config(tmp_path / "data")) as local,
        serving(local, host="127.0.0.1", port=0, writable=True) as address,
        everlog.connect(address) as remote,
    ):
        yield SimpleNamespace(local=local, remote=remote, address=address)


async def test_the_whole_client_over_a_socket(server):
    queue = server.remote.queue("pages")
    assert (await queue.put("p", {"n": 1}, priority=9)).result == "CREATED"
    assert (await queue.put(("p", 7, b"\0"), b"\1\2", delay="1h")).result == "CREATED"
    assert (await queue.put("p", "text")).result == "MERGED"
    assert [(job.key, job.data) for job in await queue.peek()] == [("p", "text"), (("p", 7, b"\0"), b"\1\2")]
    (job,) = await queue.claim(5, owner="me", lease="10m")
    assert (job.key, job.priority, job.attempt) == ("p", 9, 1)
    assert (await job.heartbeat()).stop is None
    assert (await queue.put("p", "next")).result == "SUCCESSOR"
    await job.done()
    with pytest.raises(LeaseLost):
        await job.done()
    (job,) = await queue.claim()
    await job.fail("broken", delay=0)
    (job,) = await queue.claim()
    await job.release()
    assert await queue.cancel("p", "no") == 1
    (dead,) = await queue.dead()
    assert (dead.key, dead.cause, dead.reason, len(dead.attempts)) == ("p", "cancelled", "no", 1)
    assert (await queue.revive(dead.entry)).result == "CREATED"
    assert await queue.revive(dead.entry) is None
    assert await queue.pause()
    assert await queue.claim() == []
    assert await queue.resume()
    assert (await queue.stats()).ready == 1
    assert await queue.flags() == []
    assert not await queue.ack_flag("backlog")
    assert await server.remote.queues.names() == ["pages"]


async def test_errors_are_those_of_a_local_queue(server):
    queue = server.remote.queue("jobs")
    with pytest.raises(QueueNotFound) as missing:
        await queue.stats()
    assert (missing.value.name, missing.value.known) == ("jobs", [])
    await queue.declare(max_payload_bytes=10, on_busy="reject")
    with pytest.raises(PayloadTooLarge) as large:
        await queue.put("k", "x" * 11)
    assert large.value.limit == 10
    await queue.put("k")
    await queue.claim()
    with pytest.raises(KeyBusy):
        await queue.put("k")
    with pytest.raises(InvalidPriority):
        await queue.put("k", priority=256)
    schema = ColumnSchema(1, ("k",), (Column("k", "string"),))
    with pytest.raises(DeclarationRefused, match="key columns"):
        await queue.declare(schema=schema)
    with pytest.raises(InvalidInput):
        await queue.declare(schema=ColumnSchema(1, ("k",), "nonsense"))


async def test_operations_of_another_make_are_checked(server):
    store = server.remote.queues
    await server.remote.queue("jobs").declare(max_payload_bytes=100)
    key = encode_key("k")
    good = Packet(key, hash_key(key), b'j{"a":1}', 1, 1)
    bad = [
        Packet(key, hash_key(key), b'j{"a":', 1, 1),
        Packet(key, hash_key(key), b"t\xff", 1, 1),
        Packet(key, hash_key(key), b"b" + b"x" * 101, 1, 1),
        Packet(key, hash_key(key), b"n", 300, 1),
        Packet(key, hash_key(key), b"n", 1, -1),
        Packet(key, hash_key(key), b"n", 1, 1, schema=7),
        Packet(key, b"x" * 16, b"n", 1, 1),
        Packet(b"\1\0\0", hash_key(b"\1\0\0"), b"n", 1, 1),
        Packet(b"", hash_key(b""), b"n", 1, 1),
    ]
    for packet in bad:
        with pytest.raises(InvalidInput):
            await store.execute("jobs", Put(packet))
    for operation in (Claim("w", 0), Claim("w" * 1001), Claim("w", 1, 0), Peek(0), Peek(5000)):
        with pytest.raises(InvalidInput):
            await store.execute("jobs", operation)
    assert (await store.execute("jobs", Put(good))).result == "CREATED"


async def test_many_puts_are_one_request(server):
    """All are checked before the first one is stored, on the server, too."""
    queue, store, sent = server.remote.queue("jobs"), server.remote.queues, []

    async def note(request: httpx.Request) -> None:
        sent.append(request.url.path)

    await queue.declare(max_payload_bytes=100)
    store._http.event_hooks["request"].append(note)
    receipts = await queue.put_many([(f"k{number % 500}", number) for number in range(1000)])
    assert Counter(one.result for one in receipts) == {"CREATED": 500, "MERGED": 500}
    assert sent == ["/queues/jobs/operations"]
    assert (await queue.get("k7"))[0].data == 507
    key = encode_key("new")
    packets = [Packet(key, hash_key(key), b"n", priority, 1) for priority in (1, 300)]
    with pytest.raises(InvalidInput):
        await store.put_all("jobs", packets)
    assert await queue.get("new") == []
    assert await store.put_all("jobs", []) == []
    answer = await store._http.post("/queues/jobs/operations?together=true", content=encode_operations([Peek()]))
    assert (answer.status_code, "only puts" in answer.text) == (400, True)


async def test_schedules_of_another_make_are_checked(server):
    """What another library sends is refused for the same reasons, and what is its own affair is not believed."""
    store, key = server.remote.queues, encode_key("k")
    await server.remote.queue("jobs").declare()
    good = ScheduleRow("k", key, hash_key(key), b"n", 1, every_ms=HOUR, paused=True, done_ms=7, fired_ms=7)
    bad: list[dict[str, Any]] = [
        {"name": ""},
        {"name": "x" * 201},
        {"key": b""},
        {"hash": b"x" * 16},
        {"data": b"t\xff"},
        {"data": b"t" + b"x" * 20_000},
        {"priority": 256},
        {"every_ms": 0},
        {"every_ms": 10**15},
        {"every_ms": None},
        {"cron": "@daily"},
        {"every_ms": None, "cron": "0 0 30 2 *"},
        {"every_ms": None, "cron": "@daily", "timezone": "Mars/Olympus"},
        {"timezone": "x" * 10_000},
        {"schema": 7},
        {"kind": "no blanks"},
        {"key": encode_key(("a", 1)), "hash": hash_key(encode_key(("a", 1))), "catch_up": "all"},
    ]
    for change in bad:
        with pytest.raises(InvalidInput):
            await store.execute("jobs", SetSchedule(msgspec.structs.replace(good, **change)))
    for operation in (Release(Handle(1, 1), -1), Release(Handle(1, 1), 10**15), Release(Handle(1, 1), 1, "backlog")):
        with pytest.raises(InvalidInput):
            await store.execute("jobs", operation)
    for operation in (FireSchedules(0), FireSchedules(10**6), RemoveSchedule("k", b""), PauseSchedule("k", b"", True)):
        with pytest.raises(InvalidInput):
            await store.execute("jobs", operation)
    found = await store.execute("jobs", SetSchedule(good))
    assert (found.paused, found.fired_ms, found.done_ms > 7) == (False, None, True)


async def test_a_worker_runs_against_a_server(server, monkeypatch):
    """Jobs are run, failures retried, and a job that comes while the worker waits is woken for, not polled for."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 30)  # so that a slow machine loses none
    ran = []

    @everlog.job("jobs", timeout="2s")
    async def work(job):
        ran.append((job.key, job.attempt))
        if job.key == "slow":
            await asyncio.sleep(3)  # longer than its lease: the heart keeps it
        if job.key == "fails" and job.attempt == 1:
            raise everlog.Retry("again", delay=0)
        if len(ran) == 5:
            worker.stop()

    worker = server.remote.worker(work)
    worker._poll_s = 3600.0  # whoever waited for the fall-back would wait too long
    await server.local.queue("jobs").put("slow")
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await until(lambda: ran == [("slow", 1)])
        await server.remote.queue("jobs").put("fails")
        await until(lambda: not worker.running)
        await server.local.queue("jobs").put("a")
        await server.local.queue("jobs").put("b")
        await running
    assert sorted(ran) == [("a", 1), ("b", 1), ("fails", 1), ("fails", 2), ("slow", 1)]
    assert worker.counted == Counter(done=4, failed=1)
    assert (await server.local.queue("jobs").stats()).running == 0


async def test_a_server_that_is_away(tmp_path):
    async with everlog.connect("http://127.0.0.1:9") as remote:
        with pytest.raises(Unreachable):
            await remote.queue("jobs").put("k")
        assert await remote.queues.wait("jobs", "me", 0.05) is False


async def test_an_answer_that_is_lost(tmp_path):
    """Whoever listens there takes the request and hangs up: a write may have been done, a read was not answered."""

    async def hang_up(reader, writer):
        await reader.read(100)
        writer.close()

    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, everlog.connect(f"http://127.0.0.1:{port}") as remote:
        key = encode_key("k")
        with pytest.raises(AnswerLost) as lost:
            await remote.queues.execute("jobs", Put(Packet(key, hash_key(key), b"n", 1, 1)))
        assert lost.value.retriable
        assert lost.value.queue == "jobs"
        with pytest.raises(Unreachable):
            await remote.queues.execute("jobs", Peek())


async def test_an_address_where_something_else_answers(tmp_path):
    async def other(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(other, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, everlog.connect(f"http://127.0.0.1:{port}") as remote:
        with pytest.raises(StorageFailed, match="Everlog server"):
            await remote.queue("jobs").put("k")


async def test_a_page_of_something_between_is_an_error_that_every_caller_hears():
    """A proxy that answers with its own page, as an error or as if all were well: nothing waits for ever."""
    for status in ("502 Bad Gateway", "200 OK"):

        async def answer(reader, writer, status=status):
            while await reader.readline() not in (b"\r\n", b""):
                pass
            page = b"<html>try again later</html>"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"
            writer.write(head.encode() + page)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}")
        store = RemoteQueueStore(http, SystemClock(), owns_client=True)
        async with server, asyncio.timeout(60):
            for call in (
                store.wait("jobs", "me", 1),
                store.declared("jobs"),
                store.names(),
                store.execute("jobs", Claim("me")),
                store.execute("jobs", Peek()),
            ):
                with pytest.raises(StorageFailed, match=r"Everlog|502"):
                    await call
        await store.close()


async def test_an_error_of_any_kind_reaches_those_who_wait(monkeypatch, caplog):
    store = RemoteQueueStore(httpx.AsyncClient(base_url="http://127.0.0.1:9"), VirtualClock(), owns_client=True)

    async def fail(*_: object, **__: object) -> None:
        raise KeyError("not one of ours")

    monkeypatch.setattr(store, "_call", fail)
    with pytest.raises(AnswerLost, match="not one of ours"):
        await store.execute("jobs", Claim("me"))
    assert "a request about the queue jobs failed" in caplog.text
    await store.close()


class Interrupter:
    """A proxy before a server that answers requests for some addresses with a page of its own, for a while."""

    def __init__(self, address: str) -> None:
        self.address = ""
        self.bad: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self._upstream = address.rpartition(":")[2]
        self._server: asyncio.Server

    async def __aenter__(self) -> Interrupter:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            line = head.partition(b"\r\n")[0].decode()
            found = next((part for part in self.bad if part in line and self.bad[part] > 0), None)
            if found is None:
                await self._pass_on(head, reader, writer)
            else:
                self.bad[found] -= 1
                self.given[found] += 1
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
        writer.close()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection, so that each is looked at."""
        inner, outer = await asyncio.open_connection("127.0.0.1", int(self._upstream))
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        outer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]))

        async def send() -> None:
            while chunk := await reader.read(1 << 16):
                outer.write(chunk)

        sending = asyncio.create_task(send())
        try:
            while chunk := await inner.read(1 << 16):
                writer.write(chunk)
        finally:
            sending.cancel()
            outer.close()


@pytest.mark.parametrize("part", ["/wait", "/operations", "GET /queues/jobs "])
async def test_a_page_of_something_between_ends_no_worker(server, monkeypatch, caplog, part):
    """A proxy's own 502 instead of a long poll, a claim, a heartbeat or a declaration: a line in the log, and it goes
    on."""
    monkeypatch.setattr(worker_module, "RETRY_S", 0.01)
    monkeypatch.setattr(remote_queues, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(remote_queues, "REFRESH_INTERVAL_S", 0.0)
    ran = []

    @everlog.job("jobs")
    async def work(job):
        ran.append(job.key)

    async with Interrupter(server.address) as between, everlog.connect(between.address) as remote:
        worker = remote.worker(work)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.ready)
        await server.local.queue("jobs").put("before")
        await until(lambda: ran == ["before"])
        between.bad[part] = 5
        await server.local.queue("jobs").put("during")
        await until(lambda: between.given[part] == 5)
        await server.local.queue("jobs").put("after")
        await until(lambda: {"during", "after"} <= set(ran))
        assert not running.done()
        worker.stop()
        await asyncio.wait_for(running, 60)
    assert sum(one.failures for one in worker.status()) > 0
    assert "502" in caplog.text
