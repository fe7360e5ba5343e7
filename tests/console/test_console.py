"""The console over HTTP, without a browser: twins, live frames, who may act, the operations log, the timeline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest

import everlog
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import ServerConfig
from everlog.console import actions
from everlog.console.actions import ACTIONS
from everlog.console.operations import BETWEEN, LoggedOperation, Operations
from everlog.console.pages import journal as journal_page
from everlog.console.renderer import NAV, url
from everlog.console.sampler import Sampler
from everlog.console.server import make_app, serving
from everlog.console.timeline import read_timeline, state_at
from everlog.core.events import Event
from everlog.core.head import exists
from everlog.errors import Conflict, InvalidInput, OutcomeUnknown, Unreachable
from everlog.pipeline.phases import SlowKey
from everlog.pipeline.status import CycleStatus, PipelineStatus, save_pipeline_status
from everlog.queues.job import NewJob
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.queue import Queue
from everlog.server.audit import JOURNAL, TOPIC, Audit
from everlog.server.security.guard import Security
from everlog.server.security.tokens import make_token
from everlog.testing.replication import replicate
from tests.support import broken_record, produce_raw, small_config
from tests.waiting import until

HTML = {"accept": "text/html,application/xhtml+xml"}
PAGES = [name for name, _ in NAV] + ["search"]


@pytest.fixture
async def log(tmp_path) -> AsyncIterator[Everlog]:
    config = msgspec.structs.replace(small_config(tmp_path / "data"), server=ServerConfig(writable=True))
    async with connect(config) as found:
        yield found


@pytest.fixture
async def http(log) -> AsyncIterator[httpx.AsyncClient]:
    """A server that may act."""
    async with (
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize("name", PAGES)
async def test_every_page_of_an_empty_log_says_what_to_do_first(http, name):
    page = await http.get(url(name), headers=HTML)
    assert page.status_code == 200, page.text
    assert "text/html" in page.headers["content-type"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    twins = [await http.get(url(name, ".json")), await http.get(url(name), headers={"accept": "application/json"})]
    for twin in twins:
        assert twin.status_code == 200
        assert isinstance(twin.json(), dict)
    if name not in ("flow", "pipeline"):
        assert 'class="empty"' in page.text, "an empty page is a place to begin"


async def frame(lines: AsyncIterator[str]) -> dict[str, Any]:
    """The next server-sent event."""
    found: dict[str, str] = {}
    async for line in lines:
        if not line and found:
            return {**found, "data": json.loads(found["data"])}
        name, _, value = line.partition(": ")
        if name:
            found[name] = value
    raise AssertionError("the stream ended")


async def test_a_live_page_sends_what_changed_and_a_checkpoint_otherwise(http, log, monkeypatch):
    monkeypatch.setattr("everlog.console.answer.LIVE_INTERVAL_S", 0.02)
    monkeypatch.setattr("everlog.console.answer.CHECKPOINT_INTERVAL_S", 0.1)
    await log.journal("orders").append("o", Event("first"))
    async with http.stream("GET", "/console/journal.live?topic=orders&id=o") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        first = await frame(lines)
        assert (first["event"], first["id"]) == ("fragment", "1")
        assert "first" in first["data"]["html"]
        assert "<html" not in first["data"]["html"], "the live part only"
        assert (await frame(lines))["event"] == "checkpoint"
        await log.journal("orders").append("o", Event("second"))
        while (found := await frame(lines))["event"] == "checkpoint":
            pass
        assert found["id"] == "2"
        assert "second" in found["data"]["html"]


async def test_streams_are_bounded_and_end(http, monkeypatch):
    monkeypatch.setattr("everlog.console.answer.MAX_STREAMS", 1)
    async with http.stream("GET", "/index.live") as answer:
        await frame(answer.aiter_lines())
        refused = await http.get("/index.live")
        assert refused.status_code == 503
        assert "retry-after" in refused.headers

    # A stream whose reader left makes room for the next one.
    async with asyncio.timeout(60):
        while True:
            async with http.stream("GET", "/index.live") as again:
                if again.status_code == 200:
                    break
            await asyncio.sleep(0.05)


async def secret(http: httpx.AsyncClient, log: Everlog) -> str:
    """What the forms of a page send back; they show up with the queue, at the next look."""
    await log.queue("q").declare()
    async with asyncio.timeout(60):
        while True:
            page = await http.get("/console/queues", headers=HTML)
            if found := page.text.partition('name="csrf_token" value="')[2].partition('"')[0]:
                return found
            await asyncio.sleep(0.05)


async def act(http: httpx.AsyncClient, **form: str) -> httpx.Response:
    return await http.post("/console/act", data=form, headers={"accept": "application/json"})


async def test_an_action_is_two_events_the_first_before_it_is_done(http, log):
    csrf = await secret(http, log)
    done = await act(http, csrf_token=csrf, action="queue.pause", name="q")
    assert (done.status_code, done.json()["outcome"]) == (200, "done")
    assert (await log.queue("q").stats()).paused
    events = [event.payload async for event in log.journal(TOPIC).read(JOURNAL)]
    assert [("action" in event, "outcome" in event) for event in events] == [(True, False), (False, True)]
    assert events[0]["target"] == {"name": "q"}
    assert events[0]["id"] == events[1]["id"]
    failed = await act(http, csrf_token=csrf, action="queue.revive", name="q", entry="7")
    assert failed.status_code == 400
    assert "another operator was quicker" in failed.json()["error"]["what"]
    newest, older = (await http.get("/console/operations.json")).json()["operations"]
    assert (newest["action"], newest["outcome"]) == ("queue.revive", "failed")
    assert (older["action"], older["outcome"]) == ("queue.pause", "done")


async def test_the_schedules_of_a_queue(http, log):
    csrf = await secret(http, log)
    schedules = log.queue("q").schedules
    await schedules.set("nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    page = (await http.get("/console/queues?name=q", headers=HTML)).text
    assert "30 2 * * * Europe/Berlin" in page
    assert 'value="schedule.pause"' in page
    for action, paused in (("schedule.pause", True), ("schedule.resume", False)):
        done = await act(http, csrf_token=csrf, action=action, name="q", schedule="nightly")
        assert (done.status_code, done.json()["outcome"]) == (200, "done")
        assert (await schedules.get("nightly")).paused is paused
    gone = await act(http, csrf_token=csrf, action="schedule.pause", name="q", schedule="absent")
    assert gone.status_code == 404


async def test_schemas_of_documents(http, log):
    csrf = await secret(http, log)
    hostile = "<script>alert(1)</script>"
    await log.documents.put("goods~/tea", {"price": hostile})
    await log.documents.put_schema("good", "goods~", {"properties": {"price": {"type": "number"}}})
    page = (await http.get("/console/documents", headers=HTML)).text
    assert "What was stored before was not checked." in page
    done = await act(http, csrf_token=csrf, action="schema.check", schema="good")
    assert (done.status_code, done.json()["outcome"]) == (200, "done")

    async def checked() -> Any:
        (found,) = (await http.get("/console/documents.json?path=goods~")).json()["schemas"]
        return found["check"] if found["check"]["status"] == "done" else None

    found = await until(checked, seconds=30)
    assert (found["checked"], found["violations"], found["problems"][0]["path"]) == (1, 1, "goods~/tea")
    page = (await http.get("/console/documents?path=goods~", headers=HTML)).text
    assert "is not of type" in page
    assert hostile not in page
    for path in ("goods~/tea", "other~"):
        names = [
            one["id"] for one in (await http.get(f"/console/documents.json?path={path}")).json().get("schemas", ())
        ]
        assert names == (["good"] if path == "goods~/tea" else [])
    refused = await act(http, csrf_token=csrf, action="schema.delete", schema="good")
    assert refused.status_code == 400
    done = await act(http, csrf_token=csrf, action="schema.delete", schema="good", reason="too strict")
    assert done.status_code == 200
    assert (await http.get("/console/documents.json")).json()["schemas"] == []


async def test_every_action_needs_the_secret_and_the_right_and_is_noted(http, log):
    """Whatever becomes of it: without the page's secret or the scope only the refusal is noted, with both it is."""
    operations = Operations(log, Audit(log))

    async def begun() -> list[LoggedOperation]:
        return [one for one in await operations.list(limit=1000) if one.outcome != "refused"]

    csrf = await secret(http, log)
    token, kept = make_token("bob", ["read", "write"], 0)
    guarded = Security.of(msgspec.structs.replace(log.config, server=ServerConfig(tokens=(kept,))), log.parts.clock)
    transport = httpx.ASGITransport(make_app(log, security=guarded))
    bearer = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer) as reader:
        for number, (name, action) in enumerate(sorted(ACTIONS.items())):
            fields = {**dict.fromkeys(action.fields, "7"), "action": name, "reason": "why not"}
            assert (await act(http, **fields)).status_code == 403, name
            assert (await act(reader, **fields)).status_code == 403, name
            assert len(await begun()) == number, name
            await act(http, csrf_token=csrf, **fields)
            noted = (await begun())[0]
            assert (noted.action, noted.by, noted.reason) == (name, "local", "why not")
            assert noted.outcome in ("done", "failed")
            assert dict(noted.target) == dict.fromkeys(action.fields, "7")


async def test_what_cannot_be_noted_is_not_done(http, log, monkeypatch):
    csrf = await secret(http, log)

    async def refuse(*_: Any, **__: Any) -> None:
        raise InvalidInput("no room")

    monkeypatch.setattr(type(log.journal(TOPIC)), "append", refuse)
    answer = await act(http, csrf_token=csrf, action="queue.pause", name="q")
    assert answer.status_code == 400
    assert not (await log.queue("q").stats()).paused


async def test_an_action_whose_end_is_not_noted_has_an_unknown_outcome(log):
    """As after a crash between the two events."""
    operations = Operations(log, Audit(log))

    async def crash() -> str:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await operations.perform("queue.pause", {"name": "q"}, crash, by="ann", reason="")
    (found,) = await operations.list()
    assert (found.outcome, found.by) == ("unknown", "ann")


async def test_the_outcome_of_an_action_is_what_is_known_of_it(log, monkeypatch, caplog):
    """Refused is failed, a time-out is unknown; and what was done stays done if only its end cannot be noted."""
    operations = Operations(log, Audit(log))

    async def perform(error: Exception | None) -> str:
        async def work() -> str:
            if error is not None:
                raise error
            return "fine"

        with contextlib.suppress(InvalidInput, Unreachable, OutcomeUnknown):
            return (await operations.perform("queue.pause", {"name": "q"}, work, by="ann", reason="why")).outcome
        return "raised"

    caplog.set_level("INFO", "everlog.audit")
    unknown = OutcomeUnknown("o-1", "1.x", "no answer")
    assert [await perform(one) for one in (InvalidInput("no"), Unreachable("away"), unknown)] == ["raised"] * 3
    assert [one.outcome for one in await operations.list()] == ["unknown", "unknown", "failed"]
    assert "ann begins queue.pause {'name': 'q'}" in caplog.text
    append = type(log.journal(TOPIC)).append

    async def begins_only(self: Any, journal_id: str, event: Event, **more: Any) -> Any:
        if "outcome" in event.payload:
            raise Unreachable("away")
        return await append(self, journal_id, event, **more)

    monkeypatch.setattr(type(log.journal(TOPIC)), "append", begins_only)
    assert await perform(None) == "done"
    assert (await operations.list())[0].outcome == "unknown", "as far as the journal can tell"


async def test_operations_are_paged_with_their_outcomes(log):
    operations = Operations(log, Audit(log))

    async def fine() -> str:
        return "fine"

    for number in range(12):
        await operations.perform("queue.pause", {"name": str(number)}, fine, by="ann", reason="")
    names: list[str] = []
    before = None
    while page := await operations.list(before=before, limit=5):
        assert all(one.outcome == "done" for one in page)
        names += [one.target["name"] for one in page]
        before = page[-1].seq_nr
    assert names == [str(number) for number in reversed(range(12))]
    one = await operations.get(before + 2)
    assert one is not None
    assert one.target["name"] == "1"
    assert await operations.get(2) is None, "an outcome is no action"
    assert BETWEEN > 0


async def test_without_the_right_to_act_there_are_no_forms_and_no_actions(tmp_path):
    async with (
        connect(small_config(tmp_path / "data")) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        await log.queue("q").declare()
        page = await client.get("/console/queues?name=q", headers=HTML)
        assert "Why does this not run?" in page.text
        assert 'method="post"' not in page.text
        assert "Read-only" in page.text
        refused = await client.post("/console/act", data={"action": "queue.pause", "name": "q"})
        assert refused.status_code == 403
        assert not (await log.queue("q").stats()).paused


async def test_forged_actions_are_refused(http, log):
    csrf = await secret(http, log)
    form = {"csrf_token": csrf, "action": "queue.pause", "name": "q"}
    bare = {name: value for name, value in form.items() if name != "csrf_token"}
    for forged in (bare, {**form, "csrf_token": "x"}, {**form, "csrf_token": "é"}, {**form, "csrf_token": ""}):
        assert (await http.post("/console/act", data=forged)).status_code == 403
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert (await http.post("/console/act", data=form, headers=headers)).status_code == 403
    assert (await http.post("/console/act", json=form)).status_code in (400, 403)
    assert (await http.get("/console/act")).status_code == 405
    assert not (await log.queue("q").stats()).paused
    back = await http.post("/console/act", data={**form, "back": "https://evil.example"})
    assert back.status_code == 303
    assert back.headers["location"].startswith("/?done=")
    again = await http.post("/console/act", data=bare, headers={"x-csrf-token": csrf})
    assert again.status_code == 303


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/queues?name=absent", 404),
        ("/console/projections?name=absent", 404),
        ("/console/journal?topic=absent&id=x", 400),
        ("/console/journal?topic=orders&id=o&at=-1", 400),
        ("/console/journal?topic=orders&id=o&before=x", 400),
        ("/console/documents?path=" + "x" * 2000, 414),
        ("/console/documents?path=%00", 400),
        ("/console/tags?tag=eu&after=never", 400),
        ("/console/journal?topic=orders&id=" + "x" * 9000, 400),
        ("/console/static/..%2fconsole.py", 404),
        ("/console/static/secret.txt", 404),
        ("/console/nothing", 404),
    ],
)
async def test_bad_addresses_have_clear_answers(http, log, path, status):
    await log.journal("orders").append("o", Event("x"))
    for headers in (HTML, {"accept": "application/json"}):
        answer = await http.get(path, headers=headers)
        assert answer.status_code == status, answer.text


async def test_the_sampler_keeps_an_hour_at_most_and_shares_a_look(log, monkeypatch):
    looks = 0

    async def counted(found: Everlog, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return await original(found, **options)

    from everlog.console import sampler

    original = sampler.observe
    monkeypatch.setattr(sampler, "observe", counted)
    sampler = Sampler(log, interval_s=1.0, kept_s=5.0)
    await asyncio.gather(*(sampler.latest(60.0) for _ in range(20)))
    assert looks == 1
    for number in range(8):
        await log.journal("orders").append("o", Event(number))
        await sampler.take()
    assert [sample.records for sample in sampler.samples] == [4, 5, 6, 7, 8]
    sampler.start()
    await sampler.stop()


@pytest.mark.parametrize("seed", range(12))
async def test_a_timeline_has_every_event_once_and_can_be_scrubbed(log, seed):
    """Whatever happened: all pages together are what a read returns, and at each position the past is what it was."""
    rng = random.Random(seed)
    orders, past = log.journal("orders"), {}
    for step in range(40):
        match rng.randrange(8):
            case 0:
                token = await orders.delete("o", to=rng.randrange(1, 30))
            case 1 if rng.random() < 0.2:
                token = await orders.purge("o")
            case 2:
                token = await orders.mark("o")
            case 3:
                token = None
                await replicate(log, leave=rng.randrange(2))
            case 4:
                token = None
                with contextlib.suppress(Conflict):
                    await orders.append("o", Event("lost"), expected=10_000)
            case _:
                events = [Event(f"{step}.{n}") for n in range(rng.randrange(1, 4))]
                token = await orders.append("o", events)
        if token is not None:
            past[token.offset] = [event.payload async for event in orders.read("o")]
    ref = await orders.ref("o")
    assert ref is not None
    shown: list[Any] = []
    before = upto = None
    while True:
        found = await read_timeline(orders, ref, before=before, upto=upto)
        shown += [item["payload"] for item in found.items if item["kind"] == "event"]
        if not found.page.more:
            break
        before, upto = found.page.events[-1].seq_nr, found.page.events[-1].offset
    assert shown == [event.payload async for event in orders.read("o", reverse=True)]
    assert found.whole is not None
    for offset, payloads in past.items():
        head, rows = state_at(ref, found.whole, offset)
        assert [row.payload for row in rows] == payloads
        assert exists(head) or not payloads


async def test_a_long_timeline_is_paged_without_a_gap(log):
    orders = log.journal("orders")
    for number in range(130):
        await orders.append("o", Event(number))
        if number % 7 == 0:
            await orders.mark("o", f"m{number}")
    await replicate(log, leave=3)
    ref = await orders.ref("o")
    assert ref is not None
    offsets: list[int] = []
    before = upto = None
    while True:
        found = await read_timeline(orders, ref, before=before, upto=upto)
        offsets += [item["offset"] for item in found.items]
        if not found.page.more:
            break
        before, upto = found.page.events[-1].seq_nr, found.page.events[-1].offset
    everything = [entry.record.offset for entry in found.whole or []]
    assert offsets == everything[::-1]


async def test_a_journal_shows_the_types_of_its_events(http, log):
    await log.journal("orders").append("o", [Event({}, type="placed", type_version=2), Event({})])
    found = (await http.get("/console/journal.json?topic=orders&id=o")).json()["journal"]["items"]
    assert [(item["type"], item["type_version"]) for item in found] == [(None, None), ("placed", 2)]
    assert "placed/2" in (await http.get("/console/journal?topic=orders&id=o", headers=HTML)).text


async def test_a_halted_journal_shows_what_precedes_and_where_it_stands(http, log):
    orders = log.journal("orders")
    token = await orders.append("o", Event("good"))
    await produce_raw(log, "orders", broken_record(0, key=b"o", partition=token.partition))
    await replicate(log)
    model = (await http.get("/console/journal.json?topic=orders&id=o")).json()["journal"]
    assert [item["kind"] for item in model["items"]] == ["broken", "event"]
    assert model["halted"]
    (waiting,) = (await http.get("/console/pipeline.json")).json()["waiting"]
    assert (waiting["id"], waiting["kind"]) == ("o", "halted")


async def test_the_pipeline_page_says_where_the_time_goes(http, log):
    """Phases, rows and slowest journals are on the page and in its twin; before the first cycle there are none."""
    store, now = log.parts.store, log.parts.clock.now_ms()
    await save_pipeline_status(store, PipelineStatus("running", 1, "h", now), now)
    assert "Where the time goes" not in (await http.get("/console/pipeline", headers=HTML)).text
    batch = CycleStatus(now, 8.0, 3, {"fold": 2.0, "rows": 4.0}, {"journal": 5})
    slow = SlowKey("orders", "o <1>", 1.5, 3, 5, ended_ms=now)
    said = PipelineStatus("running", 1, "h", now, cycles=1, rows={"journal": 5}, recent=[batch], slowest=[slow])
    await save_pipeline_status(store, said, now)
    page = ""
    async with asyncio.timeout(60):  # a look at everything is shared for a second
        while "Where the time goes" not in page:
            page = (await http.get("/console/pipeline", headers=HTML)).text
    for part in ("in the last cycle", "Rows written", "topic=orders&amp;id=o+%3C1%3E", "1.5 ms"):
        assert part in page
    twin = (await http.get("/console/pipeline.json")).json()
    assert [(one["phase"], one["ms"], one["percent"]) for one in twin["phases"]] == [("fold", 2, 25), ("rows", 4, 50)]
    assert twin["tables"] == [{"table": "journal", "rows": 5, "recent": 5}]
    assert twin["status"]["slowest"][0]["id"] == "o <1>"


@pytest.mark.parametrize("kind", ["files", "memory"])
async def test_leases_are_listed_and_the_first_to_end_comes_first(log, kind):
    store = log.queues if kind == "files" else MemoryQueueStore()
    queue = Queue("q", store)
    for number in range(4):
        await queue.put(f"k{number}", number)
    await queue.claim(1, owner="slow", lease="1h")
    await queue.claim(2, owner="quick", lease="1m")
    found = await queue.leases()
    assert [(info.row.owner, info.running) for info in found] == [("quick", True), ("quick", True), ("slow", True)]
    assert len(await queue.leases(1)) == 1
    assert (await queue.stats()).running == 3, "to look changes nothing"
    with pytest.raises(InvalidInput):
        await queue.leases(0)


async def test_a_topic_is_never_read_to_its_end(log, monkeypatch):
    for number in range(30):
        await log.journal("orders").append(f"o-{number}", Event("x"))
    await replicate(log, leave=2)
    found, more = await journal_page.first_keys(log, "orders", lambda key: "o-1" in key)
    assert (len(found), more) == (11, False)
    monkeypatch.setattr(journal_page, "MAX_KEYS", 5)
    found, more = await journal_page.first_keys(log, "orders", lambda key: "o-" in key)
    assert (len(found), more) == (5, True)
    monkeypatch.setattr(journal_page, "MAX_LOOKED", 10)
    assert await journal_page.first_keys(log, "orders", lambda key: False) == ([], True)


async def test_views_that_stand_still_and_dead_letters_are_told(log, http):
    """Without a pipeline, tags and projections say what is missing and what to do; a dead letter is an event."""

    async def fails(event) -> None:
        raise ValueError("poison")

    source, recovery = everlog.tag("eu"), everlog.Recovery.skip()
    projection = everlog.Projection("seen", source=source, handler=fails, recovery=recovery)
    token = await log.journal("orders").append("o-1", Event({"n": 1}, tags={"eu"}))
    await replicate(log)
    async with log.projections.run(projection):
        await log.projections.wait("seen", token)
    pages = ("/console/tags?tag=eu", "/console/projections?name=seen")
    for path in pages:
        assert "no pipeline ever ran here" not in (await http.get(path, headers=HTML)).text
    await log.journal("orders").append("o-2", Event("new", tags={"eu"}))
    for path in pages:
        page = (await http.get(path, headers=HTML)).text
        assert "1 record behind the log" in page
        assert "no pipeline ever ran here, start it with" in page
        levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", page)]
        assert all(below <= above + 1 for above, below in pairwise(levels)), levels
    model = (await http.get("/console/projections.json?name=seen")).json()
    (letter,) = model["letters"]
    shown = {field: letter[field] for field in ("topic", "id", "seq_nr", "tags", "payload")}
    assert shown == {"topic": "orders", "id": "o-1", "seq_nr": 1, "tags": ["eu"], "payload": {"n": 1}}
    assert "/console/journal?topic=orders&amp;id=o-1" in page


async def test_a_rebuilt_view_is_switched_to_and_back(http, log):
    """The page says which copy is read and which is ready; its actions are the ones of `everlog projections`."""
    csrf = await secret(http, log)
    await log.projections.view("words").execute("CREATE TABLE words (key TEXT, text TEXT)")
    await log.journal("orders").append("o", Event("x"))

    async def words(record: Any, view: Any) -> None:
        await view.execute("INSERT INTO words VALUES (?, ?)", record.key, "new")

    projection = everlog.Projection("words", source=everlog.records("orders"), handler=words, tables=["words"])
    token = await log.journal("orders").append("o", Event("y"))
    async with log.projections.run(projection):
        await log.projections.wait("words", token)
    await log.projections.rebuild(projection)

    async def copies() -> dict[str, Any]:
        found = await http.get("/console/projections.json?name=words")
        return found.json()["copies"]

    assert (await copies())["filled"]
    page = await http.get("/console/projections?name=words", headers=HTML)
    assert "Switch to copy 1" in page.text
    for action, current in (("switch", 1), ("switch-back", 0)):
        done = await act(http, csrf_token=csrf, action=f"projection.{action}", name="words", reason="better")
        assert done.status_code == 200, done.text
        assert (await copies())["current"] == current


async def test_what_is_done_to_all_that_match_reaches_the_last(http, log, monkeypatch):
    """Far beyond what the page counts; what takes too long says that there is more, and the next press goes on."""
    csrf = await secret(http, log)
    queue = log.queue("q")
    await queue.put_many([NewJob(f"b-{number:04}", 1, priority=20) for number in range(1050)])
    await queue.put_many([NewJob(f"a-{number}", 1, priority=128) for number in range(130)])

    async def all_of(action: str, **filters: str) -> str:
        done = await act(http, csrf_token=csrf, action=f"queue.{action}-all", name="q", reason="because", **filters)
        assert done.status_code == 200, done.text
        return done.json()["detail"]

    page = await http.get("/console/queues?name=q&find=a-", headers=HTML)
    assert "0 jobs match among the first 1,000; there may be others behind them." in page.text
    assert "Cancel all that match" in page.text
    monkeypatch.setattr(actions, "MAX_ACTION_S", 0.0)
    first = await all_of("cancel", find="a-")
    assert first.startswith("Cancelled 100 jobs of q in 0 s, and there are more that match")
    assert await all_of("cancel", find="a-") == "Cancelled 30 jobs of q."
    assert (await queue.stats()).ready == 1050
    monkeypatch.setattr(actions, "MAX_ACTION_S", 60.0)
    assert await all_of("cancel") == "Cancelled 1,050 jobs of q."
    page = await http.get("/console/queues?name=q&text=a-", headers=HTML)
    assert "Revive all that match" in page.text
    assert await all_of("revive", text="a-") == "Revived 130 jobs of q."
    assert (await queue.stats()).ready == 130
    assert await all_of("forget", cause="cancelled") == "Dropped 1,050 jobs of q."
    page = await http.get("/console/queues?name=q", headers=HTML)
    assert "Cancel all 130" in page.text
    assert (await queue.stats()).dead == 0
