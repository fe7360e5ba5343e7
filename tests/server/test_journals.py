"""Journals, tags, projections and operation over real HTTP: uvicorn, a socket, httpx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

import everlog
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import ServerConfig, TagsConfig
from everlog.console.server import make_app
from everlog.core.bounded_map import MAX_KEPT
from everlog.projections.observers import ProjectionMetrics
from everlog.projections.record_source import records
from everlog.server import journal_requests
from everlog.testing.journal_support import BROKEN, produce
from everlog.testing.replication import replicate
from everlog.wire.events import moment, timestamp_of
from tests.http_support import frames, new_token, send, server
from tests.support import small_config

J = "/journals/orders/o-1"
LINES = {"Accept": "application/x-ndjson"}


@pytest.fixture
async def open_server(request, tmp_path) -> AsyncIterator[tuple[Everlog, httpx.AsyncClient]]:
    """A parameter says for how many seconds a read waits for a position that the views do not hold."""
    config = msgspec.structs.replace(
        small_config(tmp_path / "data"),
        server=ServerConfig(checkpoint_interval_s=0.2),
        tags=TagsConfig(token_timeout_s=getattr(request, "param", 1.0)),
    )
    async with server(config, writable=True) as found:
        yield found


@pytest.fixture
def log(open_server) -> Everlog:
    return open_server[0]


@pytest.fixture
def http(open_server) -> httpx.AsyncClient:
    return open_server[1]


async def append(http: httpx.AsyncClient, *payloads: Any, path: str = J, status: int = 201, **options: Any) -> Any:
    body = {"events": [{"payload": payload, "tags": ["eu"]} for payload in payloads]}
    return await send(http, "POST", path, body, status, **options)


async def test_append_and_read(http):
    answer = await append(http, {"placed": 3}, "text")
    life = answer.json()["life"]
    assert answer.json() == {
        "topic": "orders",
        "id": "o-1",
        "first": 1,
        "last": 2,
        "life": life,
        "position": answer.headers["journal-position"],
    }
    assert (answer.headers["etag"], answer.headers["location"]) == (f'"2@{life}"', J)
    page = await send(http, "GET", J, params={"after": answer.headers["journal-position"]})
    assert page.headers["etag"] == f'"2@{life}"'
    events = page.json()["events"]
    assert [(one["seq_nr"], one["payload_type"], one["payload"], one["tags"]) for one in events] == [
        (1, "json", {"placed": 3}, ["eu"]),
        (2, "text", "text", ["eu"]),
    ]
    assert events[0]["position"] == answer.headers["journal-position"]
    assert (await send(http, "HEAD", J)).headers["etag"] == f'"2@{life}"'
    assert (await send(http, "GET", "/journals")).json() == {"topics": ["orders"]}
    assert (await send(http, "GET", "/journals/orders")).json() == {"topic": "orders", "ids": ["o-1"], "more": False}
    assert (await send(http, "GET", "/journals/orders", headers=LINES)).text == '"o-1"\n'
    assert (await send(http, "GET", J + "/pointer")).json()["seq_nr"] == 2


async def test_every_kind_of_payload(http):
    events = [
        {"payload": "AP8=", "payload_type": "binary"},
        {"payload": "a string", "payload_type": "json"},
        {"payload": None, "payload_type": "json"},
        {"payload": None},
        {},
        {"payload": [1, 2.50]},
    ]
    await send(http, "POST", J, {"events": events, "metadata": {"m": 1}, "headers": {"h": "ü"}}, 201)
    text = (await send(http, "GET", J)).text
    found = json.loads(text)["events"]
    assert [(one["payload_type"], one["payload"]) for one in found] == [
        ("binary", "AP8="),
        ("json", "a string"),
        ("json", None),
        (None, None),
        (None, None),
        ("json", [1, 2.5]),
    ]
    assert "2.50" in text or "[1, 2.5]" in text  # the text of a payload is its own
    assert found[0]["headers"] == {"h": "ü"}
    for body in (
        {"events": [{"payload": "?", "payload_type": "binary"}]},
        {"events": [{"payload": 3, "payload_type": "text"}]},
        {"events": [{"payload": 1, "typo": 2}]},
        {"events": []},
        {"events": [{"tags": [""]}]},
        {"events": [{}], "expire_after": "soon"},
        {"events": [{"seq_nr": 0}]},
        {"events": 1},
        [],
    ):
        await send(http, "POST", J, body, 400)
    await send(http, "POST", J, status=400, content=b'{"events": [{"payload": "\xff"}]}')
    for payload in (b'["\xff"]', b'["\\ud800"]', b"[1E+400]", b"[01]", b"[" * 5000 + b"]" * 5000):
        await send(http, "POST", J, status=400, content=b'{"events": [{"payload": ' + payload + b"}]}")
    await send(http, "POST", J, status=400, content=b"[" * 50_000)


async def test_a_pointer_says_when_the_journal_expires(log, http):
    await send(http, "POST", J, {"events": [{"payload": "a"}], "expire_after": "1.5 hours"}, 201)
    head = await log.journal("orders").head("o-1")
    found = (await send(http, "GET", f"{J}/pointer")).json()
    assert timestamp_of(found["expire_at"]) == head.expire_at == head.updated + 5_400_000
    assert found["expire_on"] == head.expire_on.isoformat()
    await append(http, "b")
    found = (await send(http, "GET", f"{J}/pointer")).json()
    assert (found["expire_at"], found["expire_on"]) == (None, None)


async def test_expectations(http):
    first = await append(http, 1, headers={"If-None-Match": "*"})
    answer = await append(http, 1, headers={"If-None-Match": "*"}, status=412)
    life = first.json()["life"]
    assert answer.json()["extra"] == {"key": "orders:o-1", "expected": 0, "actual": 1, "life": life}
    assert (answer.json()["code"], answer.headers["etag"]) == ("conflict", f'"1@{life}"')
    await append(http, 2, headers={"If-Match": first.headers["etag"]})
    await append(http, 3, headers={"If-Match": "2"})
    await append(http, 3, headers={"If-Match": '"2"'}, status=412)
    await send(http, "POST", J, {"events": [{"seq_nr": 2}]}, 409)
    for headers in ({"If-Match": "x"}, {"If-Match": "*"}, {"If-None-Match": '"1"'}, {"If-Match": "9" * 19}):
        await append(http, 1, headers=headers, status=400)
    await append(http, 1, headers={"If-Match": "1", "If-None-Match": "*"}, status=400)
    answers = await asyncio.gather(
        *(http.post(J, json={"events": [{"payload": at}]}, headers={"If-Match": "3"}) for at in range(8))
    )
    assert sorted(answer.status_code for answer in answers) == [201] + [412] * 7


async def test_a_key_makes_a_repetition_safe(http):
    for at in (0, 1):
        headers = {"Idempotency-Key": f"key-{at}"} | ({"If-Match": f'"{at}"'} if at else {"If-None-Match": "*"})
        first = await append(http, at, headers=headers)
        again = await append(http, at, headers=headers)
        assert first.json() == again.json()
    assert len((await send(http, "GET", J)).json()["events"]) == 2
    await append(http, 1, headers={"Idempotency-Key": "k"}, status=400)
    await append(http, 1, headers={"Idempotency-Key": "k\"'", "If-Match": "2"}, status=400)
    await append(http, 1, headers={"Append-Id": "nonsense"}, status=400)
    await append(http, 1, headers={"Append-Id": "3.x", "Idempotency-Key": "k", "If-Match": "2"}, status=400)


async def test_pages_and_lines(http):
    for at in range(7):
        await append(http, at)
    for reverse in (False, True):
        link, seen = f"{J}?limit=2&from=2" + ("&reverse=true" if reverse else ""), []
        while link:
            found = (await send(http, "GET", link)).json()
            seen += [one["seq_nr"] for one in found["events"]]
            link = found["next"]
        assert seen == list(range(2, 8))[:: -1 if reverse else 1]
    assert (await send(http, "GET", J)).json()["next"] is None
    answer = await send(http, "GET", J + "?from=3&to=6&limit=3", headers=LINES)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["payload"] for line in answer.text.splitlines()] == [2, 3, 4]
    for query in (
        "from=0",
        "from=x",
        "from=5&to=4",
        "limit=0",
        "after=x",
        "after=other:0:0",
        "to=99999999999999999999",
    ):
        assert (await http.get(f"{J}?{query}")).status_code == 400, query
    assert (await http.get(J.replace("o-1", "absent"))).status_code == 404
    assert (await http.get("/journals/no%20topic/x")).status_code == 400


async def test_a_page_of_heavy_events_is_short(log, http, monkeypatch):
    """It ends when it is heavy enough, and leads on."""
    monkeypatch.setattr(journal_requests, "MAX_PAGE_BYTES", 2500)
    for at in range(7):
        await append(http, f"{at}" * 1000)
    await replicate(log)
    for start in (J, J + "?reverse=true", "/tags/eu"):
        link, seen, pages = start, [], 0
        while link:
            page = (await send(http, "GET", link)).json()
            assert 1 <= len(page["events"]) <= 3
            seen += [one["seq_nr"] for one in page["events"]]
            link, pages = page["next"], pages + 1
        assert (sorted(seen), pages) == (list(range(1, 8)), 3)


async def test_delete_purge_mark(http):
    for at in range(3):
        await append(http, at)
    answer = await send(http, "DELETE", J + "?to=2")
    assert answer.headers["journal-position"] == answer.json()["position"]
    assert [one["seq_nr"] for one in (await send(http, "GET", J)).json()["events"]] == [3]
    assert (await send(http, "GET", J + "/pointer")).json()["delete_to"] == 2
    assert "journal-position" in (await send(http, "POST", J + "/mark", {"id": "m"})).headers
    assert "journal-position" in (await send(http, "POST", J + "/mark")).headers
    assert "journal-position" in (await send(http, "POST", J + "/purge")).headers
    for method, path in (("GET", J), ("HEAD", J), ("GET", J + "/pointer"), ("DELETE", J)):
        assert (await http.request(method, path)).status_code == 404


async def test_snapshots(http):
    kept = J + "/snapshots"
    await send(http, "PUT", kept + "/1", {"payload": 1}, 404)
    await append(http, 1, 2, 3)
    for at in (1, 3):
        await send(http, "PUT", f"{kept}/{at}", {"payload": {"sum": at}, "metadata": {"by": "me"}}, 204)
    await send(http, "PUT", kept + "/4", {"payload": 1}, 400)
    found = (await send(http, "GET", kept)).json()["snapshots"]
    assert [(one["seq_nr"], one["payload"], one["metadata"]) for one in found] == [
        (1, {"sum": 1}, {"by": "me"}),
        (3, {"sum": 3}, {"by": "me"}),
    ]
    assert (await send(http, "GET", kept + "/3")).json()["payload"] == {"sum": 3}
    await send(http, "GET", kept + "/2", status=404)
    assert (await send(http, "DELETE", kept + "?max_seq_nr=2")).json() == {"dropped": 1}
    assert (await send(http, "DELETE", kept)).json() == {"dropped": 1}


async def test_a_halted_journal(log, http):
    await append(http, 1, 2)
    await produce(log, "o-1", BROKEN, topic="orders")
    answer = await send(http, "GET", J, status=423)
    assert answer.json()["code"] == "journal-halted"
    lines = [json.loads(line) for line in (await send(http, "GET", J, headers=LINES)).text.splitlines()]
    assert [line.get("payload") for line in lines[:-1]] == [1, 2]
    assert lines[-1]["error"]["code"] == "journal-halted"
    assert len((await send(http, "GET", J + "?to=2")).json()["events"]) == 2
    await append(http, 3, status=423)


@pytest.mark.parametrize("open_server", [60.0], indirect=True, ids=["patient"])
async def test_tags(log, http):
    position = (await append(http, *range(5))).headers["journal-position"]
    await append(http, 5, path="/journals/carts/c")
    waiting = asyncio.create_task(send(http, "GET", "/tags/eu", params={"after": position}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await replicate(log)
    assert len((await waiting).json()["events"]) >= 5
    (tag,) = (await send(http, "GET", "/tags")).json()["tags"]
    assert (tag["tag"], tag["events"], tag["journals"]) == ("eu", 6, 2)
    link, seen = "/tags/eu?limit=4", []
    while link:
        page = (await send(http, "GET", link)).json()
        seen += page["events"]
        link = page["next"]
    assert sorted(one["payload"] for one in seen) == list(range(6))
    assert tag["last_offset"] in [one["offset"] for one in seen]
    assert page["offset"] == seen[-1]["offset"]
    lines = (await send(http, "GET", "/tags/eu", headers=LINES, params={"after": seen[1]["offset"]})).text
    assert [json.loads(line) for line in lines.splitlines()] == seen[2:]
    since = {"since": moment(timestamp_of(seen[0]["time"]) + 3_600_000)}
    assert (await send(http, "GET", "/tags/eu", params=since)).json()["events"] == []
    assert (await send(http, "GET", "/tags/none")).json() == {
        "events": [],
        "offset": None,
        "next": None,
        "behind": None,
    }
    for query in ("after=x", "since=yesterday", "limit=0", "after=x:0:0&position=y:0:0"):
        assert (await http.get(f"/tags/eu?{query}")).status_code == 400, query
    assert (await http.get("/slices/0/1023")).status_code == 200
    assert (await http.get("/slices/5/4")).status_code == 400


async def test_a_live_tag_is_resumable(log, http):
    """An id on every frame, a checkpoint at once and again and again; what follows an id is what came after it."""
    (first,) = await frames(http, "/tags/eu?live=true", 1)
    assert (first["event"], first["id"]) == ("checkpoint", "0")
    await append(http, *range(3))
    await replicate(log)
    stream = {"Accept": "text/event-stream"}
    found = await frames(http, "/tags/eu", 6, headers=stream)
    events = [frame for frame in found if frame["event"] == "event"]
    assert [json.loads(frame["data"])["payload"] for frame in events] == [0, 1, 2]
    assert all(frame["id"] for frame in found)
    assert [frame["event"] for frame in found[-2:]] == ["checkpoint", "checkpoint"]
    # A checkpoint is a place to go on from, too: all that it stands for has come.
    for last, wanted in ((events[1]["id"], [2, "new"]), (found[-1]["id"], ["new"]), ("0", [0, 1, 2, "new"])):
        headers = {**stream, "Last-Event-ID": last}
        reading = asyncio.create_task(frames(http, "/tags/eu?after=0", len(wanted), only="event", headers=headers))
        if wanted == [2, "new"]:
            await append(http, "new")
            await replicate(log)
        assert [json.loads(frame["data"])["payload"] for frame in await reading] == wanted
    await send(http, "GET", "/tags/eu?live=true", status=400, headers={"Last-Event-ID": "x"})


async def test_streams_end_with_the_server(tmp_path):
    async with httpx.AsyncClient(timeout=60) as client:
        async with server(small_config(tmp_path / "data")) as (_, http):
            request = client.build_request("GET", f"{http.base_url}/tags/eu?live=true")
            chunks = (await client.send(request, stream=True)).aiter_text()
            first = await anext(chunks)
        async with asyncio.timeout(60):
            text = first + "".join([chunk async for chunk in chunks])
    assert text.endswith("\n\n")


async def test_projections(log, http):
    seen: list[Any] = []

    @everlog.projection("seen", source=records("orders"))
    async def handler(event: Any, view: Any) -> None:
        seen.append(event)

    async with log.projections.run(handler):
        async with asyncio.timeout(60):
            while not await log.projections.list("seen"):  # noqa: ASYNC110 - it is known once it has begun
                await asyncio.sleep(0.01)
        position = (await append(http, 1, 2)).headers["journal-position"]
        found = (await send(http, "GET", "/projections/seen", params={"after": position})).json()["projections"]
        (one,) = found
        one_ = f"/projections/seen/{one['key']}"
        assert (one["name"], one["paused"], one["error"]) == ("seen", False, None)
        assert (await send(http, "GET", "/projections")).json()["projections"][0]["name"] == "seen"
        await send(http, "POST", one_ + "/pause", {"wait": 60, "reason": "maintenance"})
        assert (await send(http, "GET", one_)).json()["paused"] is True
        await send(http, "POST", one_ + "/resume", {"wait": 60})
        await send(http, "POST", one_ + "/resume")
        await send(http, "POST", one_ + "/skip", {"reason": "nothing fails"}, 400)
    offset = (await send(http, "GET", one_ + "/offset")).json()["offset"]
    assert isinstance(offset, dict)
    await send(http, "PUT", one_ + "/offset", {"offset": offset, "type": "map", "expected": offset})
    first = {next(iter(offset)): 0}
    await send(http, "PUT", one_ + "/offset", {"offset": first, "type": "map", "expected": None}, 412)
    for wrong in ({"offset": {"x": 1}, "type": "map"}, {"offset": 7}, {"offset": "text", "type": "text"}):
        answer = await send(http, "PUT", one_ + "/offset", wrong, 400)
        assert answer.json()["code"] == "invalid-offset", answer.text
    await send(http, "PUT", one_ + "/offset", {"offset": [1]}, 400)
    await send(http, "DELETE", one_ + "/offset")
    assert (await send(http, "GET", one_ + "/offset")).json()["offset"] is None
    assert (await send(http, "GET", one_ + "/dead-letters")).json() == {"dead_letters": []}
    assert (await send(http, "POST", one_ + "/dead-letters/replay")).json()["what"].startswith("will handle 0")
    assert (await send(http, "POST", one_ + "/dead-letters/forget")).json()["what"].startswith("0 dead")
    for path in ("/projections/none", "/projections/none/x", "/projections/none/x/offset"):
        await send(http, "GET", path, status=404)
    await send(http, "GET", "/projections/seen", params={"after": "orders:0:99999", "seconds": "0.1"}, status=503)
    noted = (await send(http, "GET", "/operations")).json()["events"]
    begun = [one["payload"] for one in noted if "action" in one["payload"]][::-1]
    assert [one["action"] for one in begun][:2] == ["pause_projection", "resume_projection"]
    ended = {one["payload"]["id"]: one["payload"] for one in noted if "outcome" in one["payload"]}
    assert json.loads(ended[begun[0]["id"]]["detail"]) == {"status": 200, "reason": "maintenance"}
    assert {one["outcome"] for one in ended.values()} == {"done", "failed"}


async def test_a_view_is_rebuilt_and_verified_on_request(log, http):
    """Asked for over HTTP, done by whoever runs it, watched by GET; the operations log says what was asked and why."""
    await log.projections.view("keys").execute("CREATE TABLE keys (key TEXT)")

    async def note(record: Any, view: Any) -> None:
        await view.execute("INSERT INTO keys VALUES (?)", record.key)

    projection = everlog.Projection("keys", source=records("orders"), handler=note, tables=["keys"])
    at = "/projections/keys"
    await send(http, "POST", at, {"command": "rebuild"}, 404)

    async def seen(kind: str, state: str) -> Any:
        async with asyncio.timeout(60):
            while True:
                copies = (await send(http, "GET", at)).json()["copies"]
                if copies[kind] is not None and copies[kind]["state"] == state:
                    return copies
                await asyncio.sleep(0.02)

    async with log.projections.run(projection):
        position = (await append(http, 1, 2)).headers["journal-position"]
        await log.projections.wait("keys", position)
    asked = (await send(http, "POST", at, {"command": "verify", "reason": "a doubt"})).json()
    assert (asked["verify"]["state"], asked["rebuild"]) == ("waiting", None), "nobody runs it"
    async with log.projections.run(projection), connect(str(http.base_url)) as remote:
        found = (await seen("verify", "done"))["verify"]
        assert (found["error"], found["differences"]) == (
            None,
            [{"table": "keys", "rows": 1, "missing": 0, "surplus": 0, "equal": True}],
        )
        assert (await remote.projections.copies("keys")).verify.differences[0].equal
        assert (await remote.projections.cancel_verify("keys")).verify is None
        await remote.projections.request_rebuild("keys")
        async with asyncio.timeout(60):
            while not (await remote.projections.copies("keys")).filled:  # noqa: ASYNC110 - a runner does it
                await asyncio.sleep(0.02)
        assert (await seen("rebuild", "running"))["building"] == 1, "it is kept up to date until the switch"
        assert (await remote.projections.switch("keys")).current == 1
        assert (await remote.projections.switch("keys", back=True)).previous == 1
        await send(http, "POST", at, {"command": "abort"}, 400)
    assert (await send(http, "GET", at + "~1")).json()["copies"] is None, "that is a copy itself"
    await send(http, "POST", at + "~1", {"command": "cancel-verify"}, 404)
    await send(http, "POST", at, {"command": "burn"}, 400)
    noted = [one["payload"] for one in (await send(http, "GET", "/operations")).json()["events"]][::-1]
    assert [one["action"].removesuffix("_projection") for one in noted if "action" in one] == [
        *("rebuild", "verify", "cancel_verify", "rebuild", "switch", "switch_back", "abort", "cancel_verify")
    ]
    assert json.loads(noted[3]["detail"]) == {"status": 200, "reason": "a doubt"}


async def test_status_metrics_and_health(log, http):
    await append(http, 1)
    await log.queue("mail").put("k", {"a": 1})
    assert (await send(http, "GET", "/status")).json()["caught_up"] is False
    text = (await send(http, "GET", "/metrics")).text
    await replicate(log)
    later = (await send(http, "GET", "/metrics")).text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= -1
    assert sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "lag_records{" in line) == 1
    assert sum(int(line.rsplit(" ", 1)[1]) for line in later.splitlines() if "lag_records{" in line) == 0
    assert 'everlog_queue_jobs{queue="mail",status="ready"} 1' in text
    assert 'everlog_http_requests_total{route="append_events",method="POST",status="201"} 1' in text
    assert 'everlog_part_up{part="projections"} 1' in text
    for path in ("/health/live", "/health/ready"):
        assert (await send(http, "GET", path)).json()["status"] == "ok"


async def test_metrics_of_projections_in_the_same_process(tmp_path):
    counted = ProjectionMetrics()
    async with connect(small_config(tmp_path / "data")) as log:
        app = make_app(log, metrics=[counted.text])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert "everlog_projection_handled_total" in (await client.get("/metrics")).text


async def test_the_document_and_its_page(http):
    """The page shows all of it and loads nothing. (That everything has examples is in test_http_schema.py.)"""
    found = (await send(http, "GET", "/openapi/openapi.json")).json()
    for path in ("/journals/{topic}/{journal_id}", "/tags/{tag}", "/projections/{name}/{key}/pause", "/metrics"):
        assert path in found["paths"]
    page = await send(http, "GET", "/openapi")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    assert "https://" not in page.text
    assert all(path in page.text for path in found["paths"])


async def test_every_read_of_the_log_takes_a_position(log, http):
    """One that it has reached. Others are refused, or not reached in time: a read that ignored them would answer."""
    position = (await append(http, 1, 2)).headers["journal-position"]
    await send(http, "PUT", J + "/snapshots/1", {"payload": 1}, 204)
    await replicate(log)
    reads = ["/journals/orders", J, J + "/pointer", J + "/snapshots", J + "/snapshots/1", "/tags/eu", "/tags"]
    topic, partition, offset = position.split(":")
    beyond = f"{topic}:{partition}:{int(offset) + 1000}"
    for path in reads:
        for accept in ("application/json", LINES["Accept"]):
            how: dict[str, Any] = {"headers": {"Accept": accept}}
            await send(http, "GET", path, params={"after": position}, **how)
            found = (await http.get(path, params={"after": "x:y"}, **how)).json()
            assert found.get("code", found.get("error", {}).get("code")) in ("invalid-position", "invalid-offset"), path
            found = (await http.get(path, params={"after": beyond}, **how)).json()
            known = ("invalid-position", "not-replicated")
            assert found.get("code", found.get("error", {}).get("code")) in known, path
    found = await send(http, "GET", "/status", params={"after": position})
    assert found.json()["caught_up"] is True, "it was replicated"
    later = (await append(http, 3)).headers["journal-position"]
    assert (await send(http, "GET", "/status", params={"after": later})).json()["caught_up"] is False
    async with connect(str(http.base_url)) as remote:
        assert (await remote.status(after=later)).lag == 1
    for wrong in ("x:y", beyond, f"{topic}:99:0", "nowhere:0:0"):
        refused = await send(http, "GET", "/status", params={"after": wrong}, status=400)
        assert refused.json()["code"] == "invalid-position", wrong
    await send(http, "GET", "/operations", params={"after": position}, status=400)
    await send(http, "POST", "/queues/pages/pause", status=404)  # that is an operation
    own = (await send(http, "GET", "/operations")).json()["events"][0]["position"]
    assert len((await send(http, "GET", "/operations", params={"after": own})).json()["events"]) == 2


async def test_made_up_topics_are_not_remembered_for_ever(log, http):
    await append(http, 1)
    for number in range(MAX_KEPT + 10):
        log.journal(f"made-up-{number}")
    assert len(log._journals) == MAX_KEPT
    assert (await send(http, "GET", J)).json()["seq_nr"] == 1


def test_times_keep_their_milliseconds():
    for ms in (0, 1, 999, 1000, 1_700_000_000_001, 253_402_300_799_999):
        assert timestamp_of(moment(ms)) == ms


async def test_a_log_without_room_for_operations(tmp_path):
    """`[journal] topics` may leave out the topic of operations: then they are only logged."""
    config = small_config(tmp_path / "data", topics=("journal-orders", "journal-documents"))
    async with server(config, writable=True) as (_, http):
        await append(http, 1)
        assert (await send(http, "GET", "/operations")).json()["events"] == []
        await send(http, "POST", "/projections/a/b/pause", status=404)
        token = new_token(config, "admin")
        how = {"authorization": f"Bearer {token}", "accept": "application/json"}
        acted = await http.post("/console/act", data={"action": "queue.pause", "name": "q"}, headers=how)
        assert acted.status_code == 404, "there is no such queue: it was tried"
