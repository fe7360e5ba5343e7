"""The routes of queues over real HTTP: uvicorn, a socket, httpx."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from everlog.client import connect
from everlog.console.server import serving
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from tests.support import small_config


@pytest.fixture
async def log(tmp_path):
    async with connect(small_config(tmp_path / "data")) as log:
        yield log


@pytest.fixture
async def http(log) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(log, host="127.0.0.1", port=0, writable=True) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        yield client


async def send(http, method: str, path: str, status: int, **options: Any) -> Any:
    answer = await http.request(method, f"/queues{path}", **options)
    assert answer.status_code == status, (answer.status_code, answer.text)
    return answer.json() if answer.content else None


async def post(http, path: str, body: Any = None, status: int = 200) -> Any:
    return await send(http, "POST", path, status, **({} if body is None else {"json": body}))


async def refused(http, path: str, body: Any, status: int, code: str) -> dict[str, Any]:
    found = await post(http, path, body, status)
    assert found["code"] == code, found
    assert found["errorId"]
    assert found["description"]
    return found


async def claim(http, **body: Any) -> list[dict[str, Any]]:
    return (await post(http, "/jobs/claims", body))["jobs"]


async def test_a_job_from_put_to_done(http):
    assert await post(http, "/jobs/jobs", {"key": "a", "data": {"n": 1}}, 201) == {"result": "CREATED", "entry": 1}
    merged = await post(http, "/jobs/jobs", {"key": "a", "data": "text", "priority": 20, "expiresIn": "1h"})
    assert merged == {"result": "MERGED", "entry": 1}
    await post(http, "/jobs/jobs", {"key": ["b", 7, {"base64": "AAE="}], "dataBase64": "//8=", "delay": 3600}, 201)
    page = await send(http, "GET", "/jobs/jobs?limit=1", 200)
    (first,) = page["jobs"]
    assert (first["key"], first["data"], first["priority"], first["status"]) == ("a", "text", 20, "waiting")
    assert first["expires"] is None  # "never" is later than every time
    (second,) = (await send(http, "GET", "/jobs/jobs", 200, params={"after": page["next"]}))["jobs"]
    assert (second["key"], second["data"], second["dataBase64"]) == (["b", 7, {"base64": "AAE="}], None, "//8=")
    (job,) = await claim(http, owner="me", lease="10m", limit=10)
    assert (job["key"], job["token"], job["attempt"], job["owner"]) == ("a", 1, 1, "me")
    handle = f"/jobs/claims/{job['entry']}/{job['token']}"
    assert first["claimed"] is None
    assert first["inserted"] == job["inserted"] <= job["claimed"] < job["deadline"]
    beaten = await post(http, f"{handle}/heartbeat")
    assert beaten["deadline"] >= job["deadline"]
    assert (await send(http, "GET", "/jobs/jobs?key=a", 200))["jobs"][0]["status"] == "running"
    (running,) = (await send(http, "GET", "/jobs/claims", 200))["jobs"]
    assert (running["key"], running["owner"], running["status"]) == ("a", "me", "running")
    assert running["claimed"] == job["claimed"]
    stats = await send(http, "GET", "/jobs/stats", 200)
    assert (stats["ready"], stats["delayed"], stats["running"], stats["paused"]) == (0, 1, 1, False)
    await post(http, f"{handle}/done", status=204)
    lost = await refused(http, f"{handle}/done", None, 409, "lease-lost")
    assert lost["extra"] == {"queue": "jobs", "entry": 1, "token": 1, "error": "LeaseLost"}
    assert await send(http, "GET", "", 200) == {"queues": ["jobs"]}


async def test_the_history_page_by_page(http):
    await send(http, "PUT", "/jobs", 200, json={"options": {"keep_done": "7d"}})
    for number, body in enumerate([{"result": {"pages": 3}}, None, {"result": "x" * 5000}]):
        await post(http, "/jobs/jobs", {"key": f"k{number}"}, 201)
        (job,) = await claim(http, owner="me")
        await post(http, f"/jobs/claims/{job['entry']}/{job['token']}/done", body, 204)
    first = await send(http, "GET", "/jobs/history?limit=2", 200)
    rest = await send(http, "GET", "/jobs/history", 200, params={"limit": 2, "before": first["next"]})
    jobs = first["jobs"] + rest["jobs"]
    assert rest["next"] is None
    assert [(job["key"], job["how"], job["owner"]) for job in jobs] == [(f"k{n}", "done", "me") for n in (2, 1, 0)]
    assert [(job["result"], job["resultLeftOut"]) for job in jobs] == [
        (None, True),
        (None, False),
        ({"pages": 3}, False),
    ]
    assert jobs[0]["inserted"] <= jobs[0]["claimed"] <= jobs[0]["ended"]
    assert (await send(http, "GET", "/jobs/history?key=k1", 200))["jobs"] == [jobs[1]]
    large = "9" * 20
    for page in ("history?before=nonsense", f"history?before={large}.1.1", "history?before=-1.1.1"):
        await send(http, "GET", f"/jobs/{page}", 400)
    for page in (f"dead?before={large}.1", f"jobs?after=1.{large}.00.1"):
        await send(http, "GET", f"/jobs/{page}", 400)


async def test_many_jobs_in_one_request(http):
    """A receipt for each, in their order; if one is wrong, none is put, not even the queue is made."""
    jobs = [{"key": "a", "data": 1}, {"key": "b", "delay": "1h", "group": "g"}, {"key": "a", "data": 2}]
    for wrong in ({"key": "c", "priority": 256}, {"key": "c", "data": 1, "dataBase64": "AA=="}, {"key": 1.5}):
        await post(http, "/jobs/jobs/batch", {"jobs": [*jobs, wrong]}, 400)
    for wrong in ({"jobs": []}, {"jobs": [{"key": "a"}] * 1001}, {"jobs": [{}]}, {}):
        await post(http, "/jobs/jobs/batch", wrong, 400)
    await send(http, "GET", "/jobs", 404)
    receipts = (await post(http, "/jobs/jobs/batch", {"jobs": jobs}))["receipts"]
    assert [one["result"] for one in receipts] == ["CREATED", "CREATED", "MERGED"]
    assert receipts[0]["entry"] == receipts[2]["entry"]
    waiting = (await send(http, "GET", "/jobs/jobs", 200))["jobs"]
    assert {job["key"]: (job["data"], job["group"]) for job in waiting} == {"a": (2, None), "b": (None, "g")}


async def test_purge(http):
    await post(http, "/jobs/jobs/batch", {"jobs": [{"key": key} for key in "abc"]})
    await claim(http)
    assert await post(http, "/jobs/purge") == {"count": 2}
    assert await post(http, "/jobs/purge", {"running": True}) == {"count": 1}
    await post(http, "/jobs/purge", {"running": "perhaps"}, 400)
    await post(http, "/nothing/purge", status=404)


async def test_delete(http):
    """Not while jobs run; a later queue of the name has nothing of it. A worker hears that its job is gone."""
    await send(http, "PUT", "/jobs", 200, json={"options": {"max_in_flight": 1}})
    await post(http, "/jobs/jobs/batch", {"jobs": [{"key": key} for key in "abc"]})
    (job,) = await claim(http)
    refused = await send(http, "DELETE", "/jobs", 409)
    assert (refused["code"], refused["extra"]["running"]) == ("jobs-running", 1)
    await send(http, "DELETE", "/jobs?running=perhaps", 400)
    assert await send(http, "DELETE", "/jobs?running=true", 200) == {"count": 3}
    for method, path in (("DELETE", "/jobs"), ("GET", "/jobs"), ("GET", "/jobs/stats"), ("POST", "/jobs/claims")):
        gone = await send(http, method, path, 404, **({"json": {}} if method == "POST" else {}))
        assert gone["code"] == "queue-not-found"
    assert (await send(http, "GET", "", 200))["queues"] == []
    await post(http, "/jobs/jobs", {"key": "a"}, 201)
    assert "max_in_flight" not in (await send(http, "GET", "/jobs", 200))["declaration"]["options"]
    await post(http, f"/jobs/claims/{job['entry']}/{job['token']}/done", status=409)


async def test_one_job_wherever_it_is(http):
    await send(http, "PUT", "/jobs", 200, json={"options": {"keep_done": "7d"}})
    entry = (await post(http, "/jobs/jobs", {"key": ["a", 1], "data": {"n": 1}, "delay": "1h"}, 201))["entry"]
    job = await send(http, "GET", f"/jobs/jobs/{entry}", 200)
    assert (job["state"], job["key"], job["data"], job["priority"]) == ("waiting", ["a", 1], {"n": 1}, 128)
    assert [reason["code"] for reason in job["why"]] == ["not_due"]
    await post(http, "/jobs/cancel", {"key": ["a", 1], "reason": "no"})
    job = await send(http, "GET", f"/jobs/jobs/{entry}", 200)
    assert (job["state"], job["how"], job["reason"]) == ("dead", "cancelled", "no")
    entry = (await post(http, "/jobs/jobs", {"key": "b", "dataBase64": "AAE="}, 201))["entry"]
    (claimed,) = await claim(http, owner="me")
    job = await send(http, "GET", f"/jobs/jobs/{entry}", 200)
    assert (job["state"], job["owner"], job["deadline"]) == ("running", "me", claimed["deadline"])
    assert (job["data"], job["dataBase64"]) == (None, "AAE=")
    await post(http, f"/jobs/claims/{entry}/{claimed['token']}/done", {"result": 3}, 204)
    job = await send(http, "GET", f"/jobs/jobs/{entry}", 200)
    assert (job["state"], job["how"], job["result"], job["claimed"]) == ("ended", "done", 3, claimed["claimed"])
    assert [end["token"] for end in job["ends"]] == [claimed["token"]]
    await send(http, "GET", "/jobs/jobs/4711", 404)
    await send(http, "GET", "/nothing/jobs/1", 404)
    for entry in ("-1", 2**63, 10**30):
        await send(http, "GET", f"/jobs/jobs/{entry}", 400)
    await send(http, "GET", "/jobs/jobs/nonsense", 404)


async def test_failures_dead_letters_flags(http):
    await send(http, "PUT", "/jobs", 200, json={"options": {"max_timeouts": 2}})
    await post(http, "/jobs/jobs", {"key": "a"}, 201)
    for _ in range(2):
        (job,) = await claim(http)
        handle = f"/jobs/claims/{job['entry']}/{job['token']}"
        await post(http, f"{handle}/fail", {"reason": "broken", "delay": 0}, 204)
    (letter,) = (await send(http, "GET", "/jobs/dead", 200))["dead"]
    assert (letter["key"], letter["cause"], letter["reason"]) == ("a", "failed", "broken")
    assert [attempt["reason"] for attempt in letter["attempts"]] == ["broken", "broken"]
    (flag,) = (await send(http, "GET", "/jobs/flags", 200))["flags"]
    assert (flag["reason"], flag["count"], flag["deadEntry"]) == ("failed", 1, letter["entry"])
    await send(http, "DELETE", "/jobs/flags/failed", 204)
    await send(http, "DELETE", "/jobs/flags/failed", 404)
    assert (await post(http, f"/jobs/dead/{letter['entry']}/revive"))["result"] == "CREATED"
    await post(http, f"/jobs/dead/{letter['entry']}/revive", status=404)
    (job,) = await claim(http)
    await post(http, f"/jobs/claims/{job['entry']}/{job['token']}/release", status=204)
    assert await post(http, "/jobs/cancel", {"key": "a", "reason": "no"}) == {"count": 1}
    assert await post(http, "/jobs/cancel", {"key": "a"}) == {"count": 0}


async def test_pause_and_resume(http):
    await post(http, "/jobs/jobs", {"key": "a"}, 201)
    assert await post(http, "/jobs/pause") == {"paused": True, "changed": True}
    assert await post(http, "/jobs/pause") == {"paused": True, "changed": False}
    assert await claim(http) == []
    assert await post(http, "/jobs/resume") == {"paused": False, "changed": True}
    assert len(await claim(http)) == 1


async def test_declared_columns(http, log):
    schema = ColumnSchema(
        1, ("site", "page"), (Column("site", "string"), Column("page", "uint32"), Column("raw", "binary"))
    )
    await log.queue("jobs").declare(schema=schema)
    body = {"key": {"site": "s", "page": 7}, "data": {"raw": {"base64": "AA=="}}}
    await post(http, "/jobs/jobs", body, 201)
    (found,) = (await send(http, "GET", "/jobs/jobs?key=s,7", 200))["jobs"]
    assert (found["key"], found["data"]) == (["s", 7], {"raw": {"base64": base64.b64encode(b"\0").decode()}})
    await refused(http, "/jobs/jobs", {"key": {"site": "s"}}, 400, "invalid-key")
    declared = await send(http, "GET", "/jobs", 200)
    assert [column["name"] for column in declared["declaration"]["schemas"][0]["columns"]] == ["site", "page", "raw"]


async def test_a_claim_waits_for_work(http):
    """A long poll ends with the first job; without one, after its time; a second client is not woken for the same."""
    await send(http, "PUT", "/jobs", 200, json={})
    assert await claim(http, wait=0.05) == []
    waiting = [asyncio.create_task(claim(http, wait=30, owner="same")) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert not any(one.done() for one in waiting)
    for key in "ab":
        await post(http, "/jobs/jobs", {"key": key}, 201)
    async with asyncio.timeout(25):
        found = await asyncio.gather(*waiting)
    assert sorted(job["key"] for jobs in found for job in jobs) == ["a", "b"]
    delayed = asyncio.create_task(claim(http, wait=30))
    await post(http, "/jobs/jobs", {"key": "c", "delay": "200ms"}, 201)
    async with asyncio.timeout(25):
        assert [job["key"] for job in await delayed] == ["c"]


async def listeners(log, count):
    while log.queues.waker("jobs").listeners.idle != count:  # noqa: ASYNC110  # it is the server that knows
        await asyncio.sleep(0.01)


async def test_a_client_that_hangs_up_takes_nothing(http, log):
    await send(http, "PUT", "/jobs", 200, json={})
    gone = asyncio.create_task(claim(http, wait=30))
    async with asyncio.timeout(60):
        await listeners(log, 1)
        gone.cancel()
        await listeners(log, 0)
    await post(http, "/jobs/jobs", {"key": "a"}, 201)
    assert (await send(http, "GET", "/jobs/stats", 200))["running"] == 0
    assert len(await claim(http)) == 1


@pytest.mark.case("journal-tables", 11)
async def test_bad_input_has_a_name_and_stores_nothing(http, log):
    await post(http, "/jobs/jobs", {"key": "a"}, 201)
    for body, status, code in [
        ({"key": "k", "priority": 256}, 400, "invalid-priority"),
        ({"key": "k", "priority": -1}, 400, "invalid-priority"),
        ({"key": ""}, 201, ""),
        ({"key": "x" * 5000}, 400, "invalid-key"),
        ({"key": []}, 400, "invalid-key"),
        ({"key": {"site": "s"}}, 400, "invalid-key"),
        ({"key": 1.5}, 400, "invalid-request"),
        ({}, 400, "invalid-request"),
        ({"key": "k", "colour": "red"}, 400, "invalid-request"),
        ({"key": "k", "delay": "soon"}, 400, "invalid-request"),
        ({"key": "k", "delay": 1, "at": "2100-01-01T00:00:00Z"}, 400, "invalid-request"),
        ({"key": "k", "at": "2100-01-01T00:00:00"}, 400, "invalid-request"),
        ({"key": "k", "dataBase64": "?"}, 400, "invalid-request"),
        ({"key": "k", "data": 1, "dataBase64": "AA=="}, 400, "invalid-request"),
        ({"key": "k", "group": "g" * 201}, 400, "invalid-request"),
        ({"key": "k", "kind": "no blanks"}, 400, "invalid-request"),
    ]:
        if code:
            await refused(http, "/jobs/jobs", body, status, code)
    assert (await send(http, "GET", "/jobs/stats", 200))["ready"] == 1
    await send(http, "POST", "/jobs/jobs", 400, content=b"{not json")
    for path in ("/none/stats", "/none/dead", "/none/flags", "/none/jobs", "/none"):
        found = await send(http, "GET", path, 404)
        assert (found["code"], found["extra"]["name"]) == ("queue-not-found", "none")
    await refused(http, "/none/claims", {}, 404, "queue-not-found")
    await refused(http, "/none/operations", None, 400, "invalid-request")
    await refused(http, "/jobs/claims", {"limit": 0}, 400, "invalid-request")
    await refused(http, "/jobs/claims", {"lease": 0}, 400, "invalid-request")
    await refused(http, "/jobs/claims", {"wait": 3600}, 400, "invalid-request")
    await refused(http, "/-bad-/jobs", {"key": "k"}, 400, "invalid-request")
    await send(http, "GET", "/jobs/jobs?after=1.2", 400)
    await send(http, "GET", "/jobs/jobs?limit=0", 400)
    await send(http, "PUT", "/jobs", 400, json={"options": {"max_timeouts": 0}})
    await send(http, "PUT", "/jobs", 400, json={"options": {}, "schemas": ["nonsense"]})
    await send(http, "POST", "/jobs/claims/x/1/done", 404)
    assert await log.queues.names() == ["jobs"]


async def test_a_body_that_is_too_large(http):
    await send(http, "PUT", "/jobs", 200, json={"options": {"max_payload_bytes": 10}})
    await refused(http, "/jobs/jobs", {"key": "k", "data": "x" * 11}, 413, "payload-too-large")
    answer = await http.post("/queues/jobs/cancel", json={"key": "k" * 70_000})
    assert answer.status_code == 413


async def test_the_document_describes_every_route(http):
    """Bodies, parameters and statuses: what a client's generator needs."""
    document = (await http.get("/openapi/openapi.json")).json()
    paths = {path: found for path, found in document["paths"].items() if path.startswith("/queues")}
    assert len(paths) == 26
    operations = [(path, method, one) for path, found in paths.items() for method, one in found.items()]
    assert len(operations) == 32
    for path, method, one in operations:
        named = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        given = {parameter["name"] for parameter in one.get("parameters", ()) if parameter["in"] == "path"}
        assert given == named, path
        statuses = set(one["responses"])
        assert {"400", "500", "503"} <= statuses, path
        assert one.get("description") or one.get("summary")
        success = next(answer for status, answer in one["responses"].items() if status.startswith("2"))
        assert "content" in success or method == "delete" or "204" in statuses, path
    put = paths["/queues/{name}/jobs"]["post"]
    body = put["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    assert {"key", "data", "dataBase64", "priority", "at", "delay", "expiresAt", "expiresIn", "kind", "group"} == set(
        document["components"]["schemas"][name]["properties"]
    )
    assert {"200", "201", "409", "413"} <= set(put["responses"])
