"""The routes of schedules over real HTTP; and a server that fires them by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.errors import AccessDenied, QueueNotFound, ScheduleNotFound
from tests.support import small_config


@pytest.fixture
async def log(tmp_path):
    async with connect(small_config(tmp_path / "data")) as log:
        yield log


@pytest.fixture
async def address(log) -> AsyncIterator[str]:
    async with serving(log, host="127.0.0.1", port=0, writable=True) as address:
        yield address


@pytest.fixture
async def http(address) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


async def send(http, method: str, path: str, status: int, **options: Any) -> Any:
    answer = await http.request(method, f"/queues/reports/schedules{path}", **options)
    assert answer.status_code == status, (answer.status_code, answer.text)
    return answer.json() if answer.content else None


async def test_a_schedule_from_put_to_delete(log, http):
    await log.queue("reports").declare()
    body = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "catchUp": "all", "data": {"n": 1}, "priority": 7}
    found = await send(http, "PUT", "/nightly", 200, json=body)
    assert {name: found[name] for name in body} == body
    assert (found["name"], found["every"], found["paused"], found["last"]) == ("nightly", None, False, None)
    assert found["next"].endswith(("00:30:00Z", "01:30:00Z"))
    raw = await send(http, "PUT", "/a%2Fb%20c", 200, json={"every": 3600, "dataBase64": "//8="})
    assert (raw["name"], raw["every"], raw["data"], raw["dataBase64"]) == ("a/b c", "1h", None, "//8=")
    assert await send(http, "GET", "", 200) == {"schedules": [raw, found]}
    assert await send(http, "GET", "/nightly", 200) == found
    assert await send(http, "POST", "/nightly/pause", 200) == {"paused": True, "changed": True}
    assert await send(http, "POST", "/nightly/pause", 200) == {"paused": True, "changed": False}
    assert (await send(http, "PUT", "/nightly", 200, json={"every": "1h"}))["paused"] is True
    assert await send(http, "POST", "/nightly/resume", 200) == {"paused": False, "changed": True}
    await send(http, "DELETE", "/nightly", 204)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
        refused = await send(http, method, f"/nightly{path}", 404)
        assert (refused["code"], refused["extra"]["known"]) == ("schedule-not-found", ["a/b c"])


async def test_what_is_wrong_is_said_and_stored_nowhere(log, http):
    refused = await send(http, "PUT", "/x", 404, json={"every": "1h"})
    assert refused["code"] == "queue-not-found"
    assert await log.queues.names() == []
    await log.queue("reports").declare()
    for body in (
        {},
        {"every": "1h", "cron": "@daily"},
        {"cron": "0 0 30 2 *"},
        {"cron": "@daily", "timezone": "Mars/Olympus"},
        {"cron": 5},
        {"every": "1h", "catchUp": "some"},
        {"every": "1h", "unknown": 1},
        {"every": "1h", "priority": 256},
        {"every": "1h", "data": 1, "dataBase64": "AA=="},
    ):
        assert (await send(http, "PUT", "/x", 400, json=body))["description"]
    await send(http, "PUT", "/x", 413, json={"every": "1h", "data": "x" * 20_000})
    assert await send(http, "GET", "", 200) == {"schedules": []}


async def test_a_server_fires_what_no_worker_looks_at(log, http):
    """A client in another language claims; no process of Python works on the queue."""
    await log.queue("reports").declare()
    await send(http, "PUT", "/often", 200, json={"every": "200ms", "data": "go"})
    answer = await http.post("/queues/reports/claims", json={"wait": 30})
    (job,) = answer.json()["jobs"]
    assert (job["key"], job["data"]) == ("often", "go")


async def test_the_python_client_has_the_same_schedules(log, address):
    await log.queue("reports").declare()
    async with connect(address) as remote:
        schedules = remote.queue("reports").schedules
        info = await schedules.set("hourly", every="1h", data=b"\xff")
        assert (info.name, info.data, info.every) == ("hourly", b"\xff", "1h")
        assert [one.name for one in await log.queue("reports").schedules.list()] == ["hourly"]
        assert await schedules.pause("hourly")
        assert (await schedules.get("hourly")).paused
        assert await schedules.fire() == 0
        await schedules.remove("hourly")
        with pytest.raises(ScheduleNotFound, match="there are: none"):
            await schedules.get("hourly")
        with pytest.raises(QueueNotFound):
            await remote.queue("other").schedules.set("x", every="1h")


async def test_who_may_not_operate_may_declare(log):
    """A worker without the scope `admin` stores what its functions declare; it pauses and removes nothing."""
    await log.queue("reports").declare()
    async with serving(log, host="127.0.0.1", port=0) as address, connect(address) as remote:
        schedules = remote.queue("reports").schedules
        await schedules.set("hourly", every="1h")
        for act in (schedules.pause, schedules.resume, schedules.remove):
            with pytest.raises(AccessDenied, match="admin"):
                await act("hourly")
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
            await send(http, "DELETE", "/hourly", 403)
            await send(http, "POST", "/hourly/pause", 403)
    assert [one.paused for one in await log.queue("reports").schedules.list()] == [False]


async def test_a_remote_worker_runs_what_it_declares(log, address):
    ran = []

    @everlog.job("reports", every="100ms", data={"n": 1})
    async def report(job):
        ran.append((job.key, job.data))
        worker.stop()

    async with connect(address) as remote:
        worker = remote.worker(report)
        await worker.run()
    assert ran[0] == ("report", {"n": 1})
