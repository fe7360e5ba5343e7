"""Calls between processes that share a queue: what reaches whom, and what is known of what does not."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from everlog.errors import InvalidConfig
from everlog.queues.cassandra.calls import PATH, Call, Caller, CallServer, NoAnswer, NotSent, Nudges, Reply, check_host
from everlog.queues.operations import AskStats

TOKEN = "0123456789abcdef"


def call(**changes) -> Call:
    values = {"owner": "me", "queue": "jobs", "shard": 0, "sender": "s", "number": 1, "nudge": "", "life": 1}
    return Call(**{**values, **changes})


@pytest.fixture
async def serving():
    """Starts servers that answer for the owner `me`; what they were asked."""
    asked, servers, callers = [], [], []

    async def start(token=None, given=None, seconds=5.0):
        async def serve(found):
            asked.append(found)
            if found.queue == "fails":
                raise RuntimeError("a defect")
            return Reply(7, b"answer") if found.owner == "me" else None

        server, caller = CallServer("127.0.0.1", token, serve), Caller(given, seconds)
        servers.append(server)
        callers.append(caller)
        return await server.start(), caller

    yield start, asked
    for caller in callers:
        await caller.close()
    for server in servers:
        await server.stop()


async def test_a_call_and_its_answer(serving):
    start, asked = serving
    address, caller = await start(TOKEN, TOKEN)
    sent = call(operations=[AskStats()])
    assert await caller.send(address, sent) == Reply(7, b"answer")
    assert asked == [sent]


async def test_what_was_not_done_is_known(serving):
    """Refused, for somebody else, or nobody there: it may be sent to another process."""
    start, asked = serving
    address, caller = await start(TOKEN, "another token ...")
    with pytest.raises(NotSent, match="401"):
        await caller.send(address, call(operations=[]))
    assert asked == []
    address, caller = await start()
    with pytest.raises(NotSent, match="421"):
        await caller.send(address, call(owner="other", operations=[]))
    with pytest.raises(NotSent):
        await caller.send("http://127.0.0.1:9", call(operations=[]))
    with pytest.raises(NotSent):
        await caller.send("nonsense", call(operations=[]))


async def test_what_may_have_been_done_is_said_to_be_so(serving):
    start, _ = serving
    address, caller = await start()
    with pytest.raises(NoAnswer, match="500"):
        await caller.send(address, call(queue="fails", operations=[]))
    connected = []
    silent = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    _, hasty = await start(seconds=0.1)
    with pytest.raises(NoAnswer):
        await hasty.send(f"http://127.0.0.1:{port}", call(operations=[]))
    for writer in connected:
        writer.close()
    silent.close()


async def test_other_requests_are_refused(serving):
    start, asked = serving
    address, _ = await start()
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        assert (await http.get(PATH)).status_code == 404
        assert (await http.post("/")).status_code == 404
        assert (await http.post(PATH, content=b"nonsense")).status_code == 400
    assert asked == []


async def test_a_nudge():
    heard: asyncio.Queue[str] = asyncio.Queue()
    one, two = Nudges(heard.put_nowait), Nudges(heard.put_nowait)
    await one.open("127.0.0.1")
    address = await two.open("127.0.0.1")
    for wrong in ("", "nowhere", "127.0.0.1 1"):
        one.send(wrong, "jobs")
    one.send(address, "jobs")
    async with asyncio.timeout(60):
        assert await heard.get() == "jobs"
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("host", "token", "fine"),
    [
        ("127.0.0.1", None, True),
        ("::1", None, True),
        ("10.0.0.1", TOKEN, True),
        ("10.0.0.1", None, False),
        ("0.0.0.0", TOKEN, False),
    ],
)
def test_where_a_process_may_listen(host, token, fine):
    if fine:
        check_host(host, token)
    else:
        with pytest.raises(InvalidConfig):
            check_host(host, token)
