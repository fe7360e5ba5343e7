"""Several server processes on the same documents: routing, hand-over, crashes. On one folder; on a cluster as well."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

import everlog
from everlog.config import Config
from everlog.documents.paths import quantum_of
from everlog.runtime.failpoints import VARIABLE
from tests.documents.node_support import (
    C,
    Fleet,
    Server,
    all_active,
    fleet,
    history,
    node_of,
    revision_of,
)
from tests.support import small_config
from tests.waiting import until

KEYS = [f"p/{number}" for number in range(20)]


@pytest.fixture
def config(tmp_path) -> Config:
    return small_config(tmp_path / "data")


@pytest.fixture
def elements() -> int:
    """How many a collection gets while a node restarts."""
    return 1000


@pytest.fixture
def nodes(config: Config, tmp_path) -> Iterator[Fleet]:
    with fleet(config, tmp_path / "fleet") as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        yield client


def put(http: httpx.AsyncClient, server: Server, path: str, body: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(http.put(f"{server.url}{C}{path}", content=json.dumps(body)))


@pytest.mark.case("hyperstorage", 15, 26, 69)
async def test_servers_share_documents(nodes: Fleet, http: httpx.AsyncClient, elements: int) -> None:
    servers = nodes.start(3)
    await all_active(http, servers)

    # Fifty writers through all of them: all accepted, each with a revision of its own, all by the document's owner.
    answers = await asyncio.gather(*[put(http, servers[n % 3], "d", n) for n in range(50)])
    assert sorted(map(revision_of, answers)) == list(range(1, 51))
    assert len({answer.headers["everlog-node"] for answer in answers}) == 1
    assert [revision for revision, _ in await history(http, servers[0], "d")] == list(range(1, 51))
    spread = await asyncio.gather(*[put(http, servers[0], key, 0) for key in KEYS])
    assert len({answer.headers["everlog-node"] for answer in spread}) > 1

    # A key that takes long holds its own tasks, in the order in which they came, and no others.
    with nodes.pause("slow"):
        slow = [put(http, servers[0], "slow", 1)]
        await nodes.held(1)
        slow.append(put(http, servers[1], "slow", 2))
        assert [revision_of(await put(http, servers[n], "quick", n)) for n in (0, 1)] == [1, 2]
        done, _ = await asyncio.wait(slow, timeout=0.5)
        assert not done
    assert [revision_of(answer) for answer in await asyncio.gather(*slow)] == [1, 2]
    await _post_while_a_node_restarts(nodes, http, servers, elements)


async def _post_while_a_node_restarts(
    nodes: Fleet, http: httpx.AsyncClient, servers: list[Server], elements: int
) -> None:
    """Many new elements; the owner of their collection is killed in the middle, and another node comes."""
    first = await http.post(f"{servers[0].url}{C}c~", content="{}")
    ids = {(await node_of(http, server))["id"]: server for server in servers}
    owner = ids[first.headers["everlog-node"]]
    others = [server for server in servers if server is not owner]
    found = [(revision_of(first), first.json()["path"])]
    numbers = iter(range(elements - 1))
    killed = False

    async def post() -> None:
        nonlocal killed
        for number in numbers:
            url = f"{others[number % 2].url}{C}c~"
            answer = await http.post(url, content="{}", headers={"Idempotency-Key": f"m{number}"})
            found.append((revision_of(answer), answer.json()["path"]))
            if number == elements // 2:
                killed = True
                owner.kill()
                others.extend(await asyncio.to_thread(nodes.start))

    await asyncio.gather(*[post() for _ in range(8)])
    assert killed
    found.sort()
    assert [revision for revision, _ in found] == list(range(1, elements + 1))
    paths = [path for _, path in found]
    assert paths == sorted(set(paths), key=str.encode)
    listed = (await http.get(f"{others[-1].url}{C}c~?size=2000")).json()["_embedded"]["els"]
    assert [f"c~/{one['id']}" for one in listed] == paths
    await all_active(http, others)


@pytest.mark.case("hyperstorage", 70)
async def test_a_node_joins_and_leaves_while_tasks_run(nodes: Fleet, http: httpx.AsyncClient) -> None:
    (old,) = nodes.start()
    before = (await node_of(http, old))["id"]
    with nodes.pause("p/"):
        first = [put(http, old, key, "first") for key in KEYS]
        await nodes.held(len(KEYS))
        (new,) = nodes.start()
        joiner = await node_of(http, new)
        assert joiner["state"] == "activating"
        second = [put(http, new, key, "second") for key in KEYS]
        done, _ = await asyncio.wait([*first, *second], timeout=1.5)
        assert not done
        assert (await node_of(http, new))["state"] == "activating"
        assert {one["state"] for one in (await _status(nodes))} == {"active", "activating"}
    answers = await asyncio.gather(*first)
    assert {(revision_of(answer), answer.headers["everlog-node"]) for answer in answers} == {(1, before)}
    answers = await asyncio.gather(*second)
    assert {revision_of(answer) for answer in answers} == {2}
    moved = [key for key, one in zip(KEYS, answers, strict=True) if one.headers["everlog-node"] == joiner["id"]]
    assert 0 < len(moved) < len(KEYS)
    await all_active(http, [old, new])
    await _leave(nodes, http, old, new, moved)


async def _leave(nodes: Fleet, http: httpx.AsyncClient, old: Server, new: Server, moved: list[str]) -> None:
    """The next owner begins when the leaver has ended what it had begun."""
    after, before = (await node_of(http, old))["id"], (await node_of(http, new))["id"]
    with nodes.pause("p/"):
        last = [put(http, new, key, "last") for key in moved]
        await nodes.held(len(moved))
        new.signal(signal.SIGTERM)

        async def leaving() -> bool:
            return {one["state"] for one in await _status(nodes)} == {"active", "deactivating"}

        await until(leaving)
        following = [put(http, old, key, "following") for key in moved]
        done, _ = await asyncio.wait([*last, *following], timeout=1.0)
        assert not done
        assert new.alive
    answers = await asyncio.gather(*last)
    assert {(revision_of(answer), answer.headers["everlog-node"]) for answer in answers} == {(3, before)}
    answers = await asyncio.gather(*following)
    assert {(revision_of(answer), answer.headers["everlog-node"]) for answer in answers} == {(4, after)}
    assert await asyncio.to_thread(new.wait) == 0
    assert [one["address"] for one in await _status(nodes)] == [old.url]


async def _status(nodes: Fleet) -> list[dict[str, Any]]:
    """What `everlog status` shows."""
    async with everlog.connect(nodes.config) as log:
        return (await log.status()).nodes


async def _incomplete(nodes: Fleet) -> int:
    async with everlog.connect(nodes.config) as log:
        store = (await log.documents.open()).store
        now = quantum_of(log.parts.clock.now_ms())
        return sum([len(page) async for page in store.incomplete(now - 3, now)])


@pytest.fixture
def points() -> list[str]:
    """Where a node dies: after the content, before its event is out."""
    return ["documents.indexed"]


@pytest.mark.case("hyperstorage", 65, 66, 67)
async def test_other_nodes_complete_what_a_dead_one_began(
    nodes: Fleet, http: httpx.AsyncClient, points: list[str]
) -> None:
    """Nobody writes again. What was accepted gets its event, what was not leaves no trace."""
    (survivor,) = nodes.start()
    for number, point in enumerate(points):
        (victim,) = nodes.start(**{VARIABLE: point})
        await all_active(http, [survivor, victim])
        keys = [f"k{number}/{n}" for n in range(20)]
        calls = [put(http, victim, key, {"n": 1}) for key in keys]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL

        async def recovered() -> bool:
            return await _incomplete(nodes) == 0

        await until(recovered)
        for key, answer in zip(keys, answers, strict=True):
            events = await history(http, survivor, key)
            known = await http.get(f"{survivor.url}{C}{key}")
            assert len(events) == (known.status_code == 200)
            if isinstance(answer, httpx.Response):
                assert (revision_of(answer), events) == (1, [(1, {"n": 1})])
        assert [revision_of(await put(http, survivor, key, 2)) for key in keys[:3]]


@pytest.mark.faults
async def test_a_node_that_sleeps_is_left_out_and_comes_back(nodes: Fleet, http: httpx.AsyncClient) -> None:
    """Writes that were sent to it are repeated elsewhere; when it wakes up, what it had taken is not done again."""
    servers = nodes.start(2)
    await all_active(http, servers)
    sleeper, other = servers
    sleeper.signal(signal.SIGSTOP)
    calls = [http.put(f"{other.url}{C}{key}", content="1", headers={"Idempotency-Key": "m"}) for key in KEYS]
    assert [revision_of(answer) for answer in await asyncio.gather(*calls)] == [1] * len(KEYS)
    assert [one["address"] for one in await _status(nodes)] == [other.url]
    sleeper.signal(signal.SIGCONT)
    await all_active(http, servers)
    answers = await asyncio.gather(*[put(http, sleeper, key, 2) for key in KEYS])
    assert [revision_of(answer) for answer in answers] == [2] * len(KEYS)
    assert len({answer.headers["everlog-node"] for answer in answers}) == 2


async def test_a_request_for_another_node_is_not_taken(nodes: Fleet, http: httpx.AsyncClient) -> None:
    (server,) = nodes.start()
    headers = {"Everlog-Forwarded": "1 somebody"}
    answer = await http.put(f"{server.url}{C}d", content="1", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (421, "misdirected")
    me = (await node_of(http, server))["id"]
    answer = await http.put(f"{server.url}{C}d", content="1", headers={"Everlog-Forwarded": f"2 {me}"})
    assert (revision_of(answer), answer.headers["everlog-node"]) == (1, me)
