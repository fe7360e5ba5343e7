"""The routes of schedules over real HTTP; and a server that fires them by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import everlog
from everlog.cli.status import pipeline_lines
from everlog.client import connect
from everlog.console.server import serving
from everlog.errors import AccessDenied, QueueNotFound, ScheduleNotFound
from everlog.queues.operations import AskSchedules, FireSchedules
from tests.support import small_config
from tests.waiting import until


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


async def test_a_loop_of_the_server_that_fails_is_shown_and_goes_on(log, http, address, monkeypatch):
    """In its status, on the command line, on the console; and the schedules are fired when the store works again."""
    await log.queue("reports").declare()
    execute, broken = log.queues.execute, [True]

    async def maybe(name, operation):
        if broken and isinstance(operation, AskSchedules | FireSchedules):
            raise SystemExit("the disk is gone")
        return await execute(name, operation)

    monkeypatch.setattr(log.queues, "execute", maybe)

    async def loop():
        found = {one["name"]: one for one in (await http.get("/status")).json()["loops"]}
        return found.get("schedules of reports")

    async def failing():
        found = await loop()
        return found if found is not None and found["state"] == "restarting" else None

    found = await until(failing)
    assert found["last_error"] == "SystemExit: the disk is gone"
    assert found["restarts"] == found["failures"] >= 1
    async with connect(address) as remote:
        shown = await remote.status()
    assert "schedules of reports" in {one.name for one in shown.loops}
    lines = [line.plain for line in pipeline_lines(shown)]
    assert any("loop      schedules of reports" in line and "the disk is gone" in line for line in lines)

    async def on_the_console():
        page = (await http.get("/console/pipeline")).text
        return "Loops of this server" in page and "the disk is gone" in page

    await until(on_the_console)
    broken.clear()
    await log.queue("reports").schedules.set("often", every="20ms")

    async def fires():
        found = await loop()
        return found["state"] == "running" and await log.queue("reports").peek()

    await until(fires)


async def test_the_status_of_a_log_shows_the_loops_of_its_workers(log):
    @everlog.job("jobs")
    async def work(job): ...

    worker = log.worker(work)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.ready)
    loops = {one.name for one in (await log.status()).loops}
    assert loops >= {"claims of jobs", "upkeep of jobs", "heartbeats of jobs"}
    worker.stop()
    await task
