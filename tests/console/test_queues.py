"""The console's pages about queues over HTTP: one job, history, selections, search, and what charts are made of."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import ServerConfig
from everlog.console.actions import ACTIONS, MAX_SELECTED, outcome_text, read_entries, with_selection
from everlog.console.charts import axis_end, make_plot
from everlog.console.operations import Operations
from everlog.console.pages.job import ACTIONS_OF
from everlog.console.queue_meter import SLOTS, QueueMeter, QueuePoint
from everlog.console.queue_plots import make_queue_plots
from everlog.console.sampler import Sampler
from everlog.console.server import serving
from everlog.errors import InvalidInput
from everlog.queues.queue import Queue
from everlog.queues.wait_histogram import bucket_of, middle_of, wait_percentile
from everlog.server.audit import Audit
from tests.support import small_config
from tests.waiting import until

HTML = {"accept": "text/html,application/xhtml+xml"}
HOSTILE = "<script>alert(1)</script>"


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


Act = Callable[..., Any]


@pytest.fixture
async def act(http, log) -> Act:
    """Does an action as a form of a page does; gives the answer."""
    queue = log.queue("seen")
    await queue.put("k", 1)

    async def secret() -> str:
        page = await http.get("/console/queues", headers=HTML)
        return page.text.partition('name="csrf_token" value="')[2].partition('"')[0]

    csrf = await until(secret)

    async def do(action: str, **form: str) -> httpx.Response:
        fields = {"csrf_token": csrf, "action": action, "reason": "because", **form}
        return await http.post("/console/act", data=fields, headers={"accept": "application/json"})

    return do


async def page(http: httpx.AsyncClient, queue: str, entry: object) -> tuple[str, dict[str, Any]]:
    """The page of a job, and its twin."""
    address = {"queue": queue, "entry": str(entry)}
    html = await http.get("/console/job", params=address, headers=HTML)
    twin = await http.get("/console/job.json", params=address)
    assert (html.status_code, twin.status_code) == (200, 200), html.text
    return html.text, twin.json()


def offered(html: str) -> set[str]:
    """The actions whose forms are on a page."""
    return set(re.findall(r'name="action" value="([^"]+)"', html))


async def test_a_job_in_each_state(http, log):
    """Its facts, what happened, why it does not run; and only what can be done about it."""
    queue = log.queue("mails")
    await queue.declare(keep_done="1h", max_timeouts=3)
    entry = (await queue.put("m-1", {"to": "ann"}, kind="letter", group="shop", priority=20)).entry
    html, twin = await page(http, "mails", entry)
    assert twin["queue"] == "mails"
    facts = {name: twin["job"][name] for name in ("state", "key", "kind", "group", "priority", "data", "actions")}
    assert facts == {
        "state": "waiting",
        "key": "m-1",
        "kind": "letter",
        "group": "shop",
        "priority": 20,
        "data": {"to": "ann"},
        "actions": ["cancel"],
    }
    assert [one["code"] for one in twin["why"]] == ["unclaimed"]
    assert "no worker claims any job" in html
    assert offered(html) == {"queue.cancel-job"}
    assert '/console/queues?name=mails"' in html

    (job,) = await queue.claim(1, owner="worker-1")
    html, twin = await page(http, "mails", entry)
    assert (twin["job"]["state"], twin["job"]["owner"], twin["job"]["actions"]) == ("running", "worker-1", ["stop"])
    assert [one["what"] for one in twin["timeline"]] == ["put", "running", "lease"]
    assert "Ask it to stop" in html

    await job.fail("no route", delay="0s")
    (job,) = await queue.claim(1, owner="worker-2")
    await queue.fail(job, f"broken {HOSTILE}", retry=False)
    html, twin = await page(http, "mails", entry)
    assert (twin["job"]["state"], twin["job"]["actions"]) == ("dead", ["revive", "forget"])
    told = [(one["what"], one["worker"], one["detail"]) for one in twin["timeline"] if one["what"] != "due"]
    assert told == [
        ("put", None, None),
        ("failed", "worker-1", "no route"),
        ("failed", "worker-2", f"broken {HOSTILE}"),
        ("dead", None, "not tried again"),
    ]
    assert offered(html) == {"queue.revive", "queue.forget"}
    assert HOSTILE not in html
    assert "UTC" in html

    revived = await queue.revive(entry)
    assert revived is not None
    (job,) = await queue.claim(1, owner="worker-3")
    await job.done({"sent": True})
    html, twin = await page(http, "mails", revived.entry)
    assert (twin["job"]["state"], twin["job"]["how"], twin["job"]["result"]) == ("ended", "done", {"sent": True})
    assert twin["job"]["actions"] == []
    assert offered(html) == set()
    assert "Not kept: the history has how a job ended" in html
    assert twin["timeline"][-1]["seconds"] >= 0


async def test_every_state_has_actions_that_exist():
    assert set(ACTIONS_OF) == {"waiting", "running", "dead", "ended"}
    assert {"queue.cancel-job", "queue.revive", "queue.forget"} <= set(ACTIONS)


@pytest.mark.parametrize(
    ("entry", "status"),
    [
        ("999999", 404),
        (str(2**63 - 1), 404),
        (str(2**63), 400),
        ("9" * 400, 400),
        ("-1", 400),
        ("1.5", 400),
        ("one", 400),
        ("٣", 400),
        ("", 400),
        (HOSTILE, 400),
        ("1" + "0" * 9000, 400),
    ],
)
async def test_a_number_that_is_no_job(http, log, entry, status):
    await log.queue("mails").put("m-1", 1)
    for headers in (HTML, {"accept": "application/json"}):
        answer = await http.get("/console/job", params={"queue": "mails", "entry": entry}, headers=headers)
        assert answer.status_code == status, answer.text
        assert HOSTILE not in answer.text or "json" in headers["accept"]
    absent = await http.get("/console/job", params={"queue": "absent", "entry": "1"}, headers=HTML)
    assert absent.status_code == 404
    assert (await http.get("/console/job", headers=HTML)).status_code == 400


@pytest.mark.parametrize("text", [HOSTILE * 400, "x" * 10_000, "'\"&lt;" * 1000], ids=["markup", "long", "quotes"])
async def test_hostile_jobs_are_only_text(http, log, text):
    """In keys, payloads, groups, errors, results and workers: on the queue's page and on the job's, short of harm."""
    queue = log.queue("mails")
    await queue.declare(keep_done="1h")
    key, short = text[:500], text[:100]
    entries = [(await queue.put(key, {"body": text}, kind="letter", group=short)).entry]
    for attempt in range(3):
        (job,) = await queue.claim(1, owner=text[:200])
        if attempt == 0:
            await job.fail(text, delay="0s")
        elif attempt == 1:
            await job.done(text[:4000])
            entries.append((await queue.put(key, text)).entry)
        else:
            await queue.fail(job, text, retry=False)
    entries.append((await queue.put(key, [text])).entry)
    for path in ["/console/queues?name=mails", *(f"/console/job?queue=mails&entry={entry}" for entry in entries)]:
        answer = await http.get(path, headers=HTML)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert len(answer.text) < 200_000
    found = await http.get("/console/search", params={"q": key}, headers=HTML)
    assert found.status_code == 200
    assert "<script>alert" not in found.text


async def test_one_job_of_a_key_is_cancelled_and_a_running_one_is_asked(http, log, act):
    queue = log.queue("mails")
    await queue.declare(merge=False)
    first, second, third = [(await queue.put("same", number)).entry for number in range(3)]
    (job,) = await queue.claim(1)
    assert job.entry == first
    done = (await act("queue.cancel-job", name="mails", entry=str(second))).json()
    assert done["detail"] == f"Cancelled job {second} of mails: it is a dead letter now, and can be revived."
    asked = (await act("queue.cancel-job", name="mails", entry=str(first))).json()
    assert asked["detail"].startswith(f"Asked job {first} of mails to stop: its worker hears that")
    assert (await queue.heartbeat(job)).stop == "cancel"
    gone = await act("queue.cancel-job", name="mails", entry=str(second))
    assert gone.status_code == 400
    assert "has ended meanwhile" in gone.json()["error"]["what"]
    assert [one.entry for one in await queue.peek()] == [third]
    html, twin = await page(http, "mails", first)
    assert twin["job"]["actions"] == [], "to ask once is enough"
    assert "asked to stop" in html
    operations = (await http.get("/console/operations", headers=HTML)).text
    assert "asked for" in operations
    newest, *_ = await Operations(log, Audit(log)).list()
    assert outcome_text(newest) == "failed"


async def test_selected_jobs_are_revived_each_with_its_own_result(http, log, act):
    queue = log.queue("mails")
    await queue.declare(on_busy="reject")
    for number in range(4):
        await queue.put(f"m-{number}", number)
    for job in await queue.claim(4):
        await queue.fail(job, "no route", retry=False)
    dead = {letter.key: letter.entry for letter in await queue.dead()}
    await queue.put("m-3", "runs")
    await queue.claim(1)
    await queue.revive(dead["m-2"])
    ticked = {f"select-{entry}": "on" for entry in dead.values()}
    done = (await act("queue.revive-selected", name="mails", **ticked)).json()
    pattern = (
        rf"Revived 2 jobs of mails \((\d+) as \d+, (\d+) as \d+\); 1 was gone already \({dead['m-2']}\); "
        rf"1 was refused by the queue, as a job of the same key runs \({dead['m-3']} for \d+\)\."
    )
    found = re.fullmatch(pattern, done["detail"])
    assert found is not None, done["detail"]
    assert {int(one) for one in found.groups()} == {dead["m-0"], dead["m-1"]}
    assert {letter.key for letter in await queue.dead()} == {"m-3"}
    noted = (await Operations(log, Audit(log)).list())[0]
    assert set(noted.target["entries"].split(",")) == {str(entry) for entry in dead.values()}
    again = (await act("queue.revive-selected", name="mails", entries=str(dead["m-0"]))).json()
    assert again["detail"] == f"1 was gone already ({dead['m-0']})."


async def test_selected_jobs_are_cancelled(http, log, act):
    queue = log.queue("mails")
    running = (await queue.put("runs", 1)).entry
    await queue.claim(1)
    picked = [*[(await queue.put(f"m-{number}", number)).entry for number in range(2)], running, 999_999]
    await queue.put("not selected", 1)
    done = await act("queue.cancel-selected", name="mails", **{f"select-{entry}": "on" for entry in picked})
    assert done.json()["detail"] == (
        f"Asked 1 job of mails to stop ({running}); cancelled 2 jobs of mails ({picked[0]}, {picked[1]}); "
        "1 was gone already (999999)."
    )
    assert (await queue.stats()).dead == 2


async def test_a_selection_is_bounded_and_needs_something_and_a_reason(http, log, act):
    await log.queue("mails").put("m-1", 1)
    refused = [
        {},
        {"entries": ",".join(map(str, range(MAX_SELECTED + 1)))},
        {"entries": "1,x"},
        {"entries": str(2**63)},
        {"select-<script>": "on"},
        {"select-1": "on", "reason": ""},
    ]
    for form in refused:
        answer = await act("queue.cancel-selected", name="mails", **form)
        assert answer.status_code == 400, form
    assert "tick some of the list" in (await act("queue.revive-selected", name="mails")).json()["error"]["what"]
    for action in ("queue.revive", "queue.forget", "queue.cancel-job"):
        assert (await act(action, name="mails", entry=str(2**63))).status_code == 400
        assert (await act(action, name="mails", entry=str(2**63 - 1))).status_code == 400
    assert (await act("queue.revive-selected", name="mails", entries=str(2**63))).status_code == 400
    many = {f"select-{number}": "on" for number in range(200)}
    assert (await act("queue.revive-selected", name="mails", **many)).status_code == 400
    absent = await act("queue.revive-selected", name="absent", entries="1")
    assert absent.status_code == 404
    assert (await log.queue("mails").stats()).ready == 1


async def test_boxes_are_there_for_those_who_may_act_only(tmp_path, log, http):
    await log.queue("mails").put("m-1", 1)
    entry = (await log.queue("mails").peek())[0].entry
    html = (await http.get("/console/queues?name=mails", headers=HTML)).text
    assert f'form="waiting-jobs" name="select-{entry}"' in html
    assert html.count('id="waiting-jobs"') == 1
    async with (
        connect(small_config(tmp_path / "data")) as reading,
        serving(reading, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        for path in ("/console/queues?name=mails", f"/console/job?queue=mails&entry={entry}"):
            seen = (await client.get(path, headers=HTML)).text
            assert 'method="post"' not in seen
            assert 'type="checkbox"' not in seen


async def test_the_history_is_paged_and_filtered(http, log):
    queue = log.queue("mails")
    await queue.declare(keep_done="1h")
    for number in range(60):
        await queue.put(f"m-{number % 20}", number)
        (job,) = await queue.claim(1, owner="worker-1")
        await (job.done({"n": number}) if number % 3 else queue.fail(job, "no route", retry=False))
    expected = [(one.entry, one.how) for one in await queue.history(1000)]
    found: list[tuple[int, str]] = []
    before = ""
    while before is not None:
        model = (await http.get("/console/queues.json", params={"name": "mails", "before": before})).json()["queue"]
        found += [(one["entry"], one["how"]) for one in model["history"]["jobs"]]
        before = model["history"]["next"]
    assert found == expected
    html = (await http.get("/console/queues?name=mails", headers=HTML)).text
    assert ">Older</a>" in html
    newest = model["history"]["jobs"][-1]
    assert newest["waited_s"] >= 0
    assert newest["took_s"] >= 0
    some = (await http.get("/console/queues.json?name=mails&ended=m-7")).json()["queue"]["history"]["jobs"]
    assert [one["key"] for one in some] == ["m-7"] * 3
    done = next(one for one in some if one["how"] == "done")
    assert (done["owner"], set(done["result"])) == ("worker-1", {"n"})
    for place in ("x", "1-2", "1-2-3-4", "--", "1-2-²", "9" * 30 + "-1-1"):
        assert (await http.get("/console/queues", params={"name": "mails", "before": place})).status_code == 400
    far = f"{2**62}-{2**63 - 1}-{10**18}"
    assert (await http.get("/console/queues", params={"name": "mails", "before": far})).status_code == 200
    without = (await http.get("/console/queues?name=mails&ended=never", headers=HTML)).text
    assert "None with this key." in without
    await log.queue("plain").declare()
    assert "keeps no jobs that have ended" in (await http.get("/console/queues?name=plain", headers=HTML)).text


async def test_jobs_are_found_by_number_and_by_key(http, log):
    queue = log.queue("mails")
    await queue.declare(keep_done="1h")
    await log.queue("other").put("m-1", 1)
    for key in ("m-1", "gone", "dead"):
        await queue.put(key, 1)
    jobs = {job.key: job for job in await queue.claim(3)}
    await jobs["gone"].done()
    await queue.fail(jobs["dead"], "no", retry=False)

    async def search(text: str) -> set[tuple[str, str]]:
        found = (await http.get("/console/search.json", params={"q": text})).json()["found"]
        return {(one["state"]["queue"], one["state"]["entry"]) for one in found if one["kind"] == "job"}

    await until(lambda: search("m-1"))
    entries = {key: str(job.entry) for key, job in jobs.items()}
    assert {name for name, _ in await search("m-1")} == {"mails", "other"}
    assert await search("mails:m-1") == {("mails", entries["m-1"])}
    assert await search("gone") == {("mails", entries["gone"])}
    assert await search("dead") == {("mails", entries["dead"])}
    assert ("mails", entries["dead"]) in await search(entries["dead"])
    assert await search(f"mails:{entries['gone']}") == {("mails", entries["gone"])}
    for text in ("never", str(2**63), "9" * 100, HOSTILE, "x" * 2000):
        assert await search(text) == set()


async def test_a_queue_whose_table_is_gone_meanwhile_is_an_answer_not_a_crash(http, log, monkeypatch):
    """The queue is declared when the page asks first, and is not when it asks again."""
    queue = log.queue("mails")
    entry = (await queue.put("m-1", 1)).entry
    known = log.queues.declared

    async def absent(name: str) -> Any:
        return None if name == "mails" else await known(name)

    monkeypatch.setattr(log.queues, "declared", absent)
    for path in ("/console/queues?name=mails", f"/console/job?queue=mails&entry={entry}"):
        assert (await http.get(path, headers=HTML)).status_code == 404


async def test_what_was_done_is_told_in_a_sentence(http, log, act):
    queue = log.queue("mails")
    await queue.put("m-1", 1)
    (job,) = await queue.claim(1)
    await queue.fail(job, "no", retry=False)
    done = await act("queue.revive", name="mails", entry=str(job.entry))
    detail = done.json()["detail"]
    assert re.fullmatch(rf"Revived job {job.entry} of mails: it waits as job \d+\.", detail)
    shown = await http.get(f"/console/queues?name=mails&done={done.json()['seq_nr']}", headers=HTML)
    assert detail in shown.text
    assert "queue.revive mails" not in shown.text
    for action, form in (("queue.pause", {}), ("queue.resume", {}), ("queue.cancel", {"key": "m-1"})):
        told = (await act(action, name="mails", **form)).json()["detail"]
        assert told[0].isupper()
        assert told.endswith(".")


def test_what_is_ticked_in_a_form_is_one_field():
    assert with_selection({"name": "q", "select-1": "on", "select-22": "on"}) == {"name": "q", "entries": "1,22"}
    assert with_selection({"name": "q"}) == {"name": "q"}
    assert read_entries("1,22,1") == [1, 22]
    with pytest.raises(InvalidInput):
        read_entries("1,,2")


# What the charts are made of


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_of_waits_is_right_to_an_eighth(waits, share):
    counted = Counter(f"WAITED_{bucket_of(ms)}" for ms in waits)
    exact = sorted(waits)[max(0, -(-round(share * len(waits) * 1e6) // 10**6) - 1)]
    found = wait_percentile(counted, share)
    assert found is not None
    near = [ms for ms in waits if abs(found - ms) <= ms / 8 + 0.001]
    assert near, "it is one of the waits"
    assert abs(found - exact) <= exact / 8 + 0.001 or exact in waits
    assert all(bucket_of(a) <= bucket_of(b) for a, b in zip(sorted(waits), sorted(waits)[1:], strict=False))
    assert all(abs(middle_of(bucket_of(ms)) - ms) <= ms / 8 for ms in waits)


def test_the_hour_of_a_queue_is_made_of_what_its_counters_grew_by():
    meter = QueueMeter(slot_s=10, slots=3)
    total: Counter[str] = Counter(DONE=100, CREATED=100)
    for second in range(0, 61, 5):
        meter.note(second * 1000, {"q": Counter(total), "idle": Counter()})
        total.update(DONE=5, MERGED=10, FAILED=1, TIMED_OUT=1, CLAIMED=5, WAITED_3=4, **{f"WAITED_{bucket_of(800)}": 1})
    points = meter.points("q")
    assert len(points) == 3, "never more than fit"
    assert [(one.put, one.done, one.failed) for one in points] == [(2, 1, 0.4)] * 3
    assert (points[0].wait_p50_s, points[0].starts) == (0.003, 10)
    assert points[0].wait_p95_s == pytest.approx(0.8, rel=0.125)
    assert [(one.put, one.wait_p50_s) for one in meter.points("idle")] == [(0, None)] * 3
    assert meter.points("absent") == []


def test_a_queue_that_is_made_again_does_not_count_backwards():
    meter = QueueMeter(slot_s=10)
    meter.note(0, {"q": Counter(DONE=100)})
    meter.note(5000, {"q": Counter(DONE=3)})
    meter.note(10_000, {"q": Counter(DONE=13)})
    assert [one.done for one in meter.points("q")] == [0, 2]
    meter.note(10_000, {"q": Counter(DONE=14)})
    meter.note(15_000, {})
    assert meter.points("q") == []


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 50), st.integers(0, 20)), max_size=60))
def test_charts_of_any_hour_stay_in_their_frame(steps):
    meter, now, total = QueueMeter(), 0, Counter[str]()
    for passed, done, wait in steps:
        now += passed
        total.update({"DONE": done, "CREATED": done, "FAILED": done % 2, f"WAITED_{wait}": done})
        meter.note(now, {"q": Counter(total)})
    points = meter.points("q")
    assert len(points) <= SLOTS
    assert json.loads(msgspec.json.encode(points)) is not None
    for chart in make_queue_plots(points):
        assert chart.plot.width == len(points)
        for line in chart.lines:
            assert len(line.values) == len(line.texts) == len(points)
        for path in chart.plot.lines:
            for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path):
                assert 0 <= float(x) <= len(points)
                assert 0 <= float(y) <= 100


@given(st.floats(1e-6, 1e9))
def test_the_end_of_an_axis_is_round_and_not_below(highest):
    for seconds in (False, True):
        end = axis_end(highest, seconds=seconds)
        assert highest <= end * 1.000001
        assert end <= max(highest * 10.000001, 0.001)
    assert make_plot([[None, None]]).lines == [""]


async def test_the_sampler_keeps_what_workers_do(log):
    """Also what another process does in the same folder, once it has told."""
    queue, sampler = log.queue("mails"), Sampler(log)
    await queue.declare()
    await sampler.take()
    before = await log.queues.totals("mails")
    other = log.queues.sibling()
    theirs = Queue("mails", other)
    for number in range(3):
        await theirs.put(f"m-{number}", 1)
    for job in await theirs.claim(2):
        await job.done()
    await other.close()
    (job,) = await queue.claim(1)
    await job.fail("no")
    grown = await log.queues.totals("mails") - before
    assert {kind: grown[kind] for kind in ("CREATED", "CLAIMED", "DONE", "FAILED")} == {
        "CREATED": 3,
        "CLAIMED": 3,
        "DONE": 2,
        "FAILED": 1,
    }

    async def counted() -> bool:
        await sampler.take()
        return sum(point.done * point.seconds for point in sampler.queues.points("mails")) > 1.9

    await until(counted)
    points = sampler.queues.points("mails")
    assert sum(point.put * point.seconds for point in points) == pytest.approx(3)
    assert sum(point.failed * point.seconds for point in points) == pytest.approx(1)
    assert sum(point.starts for point in points) == 3


async def test_the_charts_of_a_queue(http, log, monkeypatch):
    """With a title for every slot, the ends of the axes, and what they cover; the twin has the numbers."""
    await log.queue("mails").put("m-1", 1)
    points = [
        QueuePoint(1_700_000_000_000 + 30_000 * at, 30.0, 2.0 * at, 1.0, 0.0, 3 * at, wait, wait)
        for at, wait in enumerate((None, 0.004, 3.0))
    ]
    monkeypatch.setattr(QueueMeter, "points", lambda self, name: points)
    html = (await http.get("/console/queues?name=mails", headers=HTML)).text
    assert html.count("<title>") == 1 + 2 * len(points)
    assert "<title>22:13:50 UTC: put 2, done 1, failed 0</title>" in html
    assert "<title>22:14:20 UTC: half within 3.0 s, 95 % within 3.0 s</title>" in html
    assert "half within no start" in html
    assert 'aria-label="Jobs per second: put 4, done 1, failed 0"' in html
    assert "over all processes that work on its folder" in html
    twin = (await http.get("/console/queues.json?name=mails")).json()["queue"]["traffic"]
    assert twin["shared"]
    assert [one["put"] for one in twin["points"]] == [0, 2, 4]
    assert twin["points"][0]["wait_p50_s"] is None
