"""The console's pages about queues in a real browser: jobs, history, charts, selections with and without scripts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from everlog.console.queue_meter import QueueMeter, QueuePoint
from tests.browser.test_console import AUDIT
from tests.browser.world import HOSTILE, World

LONG = "x" * 10_000


def fill(world: World, name: str) -> dict[str, int]:
    """A queue with a job in each state, and of each some that are hostile; the numbers of the first ones."""

    async def prepare() -> dict[str, int]:
        queue = world.log.queue(name)
        await queue.declare(keep_done="1h", max_timeouts=3, description=HOSTILE)
        for number in range(3):
            await queue.put(f"{name}-dead-{number}", {"to": HOSTILE, "n": number}, priority=0)
        for job in await queue.claim(3, owner="worker-1"):
            await job.fail(f"no route {LONG}", delay="0s")
        for job in await queue.claim(3, owner="w" * 200):
            await queue.fail(job, f"ValueError: {HOSTILE}", retry=False)
        dead = {str(letter.key): letter.entry for letter in await queue.dead()}
        ended = await queue.put(f"{name}-ended {HOSTILE}", LONG)
        await queue.put("k" * 500, 1)
        for job in await queue.claim(2, owner="worker-2"):
            await job.done({"said": HOSTILE, "long": LONG[:3000]})
        running = await queue.put(f"{name}-running", [LONG], kind="letter", group=HOSTILE)
        await queue.claim(1, owner="worker-3", lease="1h")
        waiting = [await queue.put(f"{name}-waiting-{number}", number, delay="1h") for number in range(3)]
        return {
            "dead": dead[f"{name}-dead-0"],
            "ended": ended.entry,
            "running": running.entry,
            "waiting": waiting[0].entry,
        }

    return world.do(prepare())


@pytest.fixture(scope="module")
def jobs(world) -> dict[str, int]:
    return fill(world, "letters")


def slots(count: int = 120) -> list[QueuePoint]:
    """An hour with a gap in its starts, a burst, and some failures."""
    found = []
    for at in range(count):
        wait = None if at % 40 < 5 else 0.001 * (at + 1)
        rate = 3.0 + (at % 7) * (30 if at > 80 else 1)
        more = (None if wait is None else 4 * wait,)
        found.append(QueuePoint(1_700_000_000_000 + 30_000 * at, 30, rate, rate, at % 50 // 45, at, wait, *more))
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_the_pages_of_queues_are_readable_for_everybody(visit, jobs, width, dark, monkeypatch):
    """In each state of a job and of a queue, also with what is hostile or long in every place."""
    monkeypatch.setattr(QueueMeter, "points", lambda self, name: slots() if name == "letters" else [])
    seen = visit("/", width=width, dark=dark)
    paths = [f"/console/job?queue=letters&entry={entry}" for entry in jobs.values()]
    paths += ["/console/queues?name=letters", "/console/queues?name=reports", "/console/search?q=letters-running"]
    for path in paths:
        seen.open(path)
        assert seen.page.locator("main script, main b").count() == 0, path
        findings = seen.page.evaluate(AUDIT)
        assert findings == [], f"{path} at {width} px: " + "\n".join(findings)
        for summary in seen.page.locator("details.payload summary").all()[:3]:
            summary.click()
        assert seen.page.evaluate(AUDIT) == [], f"{path} at {width} px, with its payloads open"


def test_a_job_is_reached_from_every_list_and_back(visit, world, jobs):
    seen = visit("/")
    page = seen.page
    for name, region in (("waiting", "Waiting jobs"), ("running", "Running jobs"), ("ended", "History")):
        seen.open("/console/queues?name=letters")
        page.get_by_role("region", name=region).get_by_role("link", name=str(jobs[name]), exact=True).click()
        expect(page.get_by_role("heading", name=f"Job {jobs[name]}")).to_be_visible()
        expect(page.locator(".side [aria-current]")).to_have_text("Queues")
    page.locator(".crumbs").get_by_role("link", name="letters").click()
    expect(page).to_have_url(re.compile("name=letters"))
    page.locator("#q").fill(f"letters:{jobs['dead']}")
    page.locator("#q").press("Enter")
    page.get_by_role("link", name="job letters").click()
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("ValueError")
    expect(page.get_by_role("region", name="Payload of the job")).to_contain_text("<script>alert(1)</script>")


def test_what_can_be_done_to_a_job_depends_on_its_state(visit, world):
    """Its page offers that and nothing else; the notice says what became of it."""
    entries = fill(world, "acted")
    seen = visit(f"/console/job?queue=acted&entry={entries['ended']}")
    page = seen.page
    expect(page.locator("main form[method=post]")).to_have_count(0)

    seen.open(f"/console/job?queue=acted&entry={entries['waiting']}")
    expect(page.locator("main form[method=post]")).to_have_count(1)
    page.locator("summary", has_text="Cancel").click()
    page.get_by_label("Reason").fill("not needed")
    page.locator(".menu[open] button").click()
    expect(page.locator(".flash")).to_contain_text(f"Cancelled job {entries['waiting']} of acted")
    expect(page.locator("dl.strip")).to_contain_text("dead")

    page.get_by_role("button", name="Revive job").click()
    expect(page.locator(".wrong, .flash")).to_contain_text(re.compile("Revived job|has no job"))

    seen.open(f"/console/job?queue=acted&entry={entries['running']}")
    page.locator("summary", has_text="Ask it to stop").click()
    page.get_by_label("Reason").fill("too slow")
    page.locator(".menu[open] button").click()
    expect(page.locator(".flash")).to_contain_text(f"Asked job {entries['running']} of acted to stop")
    expect(page.locator("dl.strip")).to_contain_text("asked to stop")
    expect(page.locator("summary", has_text="Ask it to stop")).to_have_count(0)
    page.goto(world.url + "/console/operations")
    expect(page.locator("tbody tr").first).to_contain_text("asked for")


def test_some_of_a_list_are_selected_and_revived(visit, world):
    """All at once, some of them; what is ticked stays ticked while the page moves on."""
    fill(world, "picked")
    page = visit("/console/queues?name=picked").page
    letters = page.get_by_role("region", name="Dead letters")
    summary = page.locator("summary", has_text="Revive")
    letters.get_by_label("Select all on this page").check()
    expect(summary).to_have_text("Revive 3 selected…")
    letters.get_by_label(re.compile("^Select job .*picked-dead-1")).uncheck()
    expect(summary).to_have_text("Revive 2 selected…")
    assert letters.get_by_label("Select all on this page").evaluate("box => box.indeterminate")
    page.evaluate("document.activeElement.blur()")
    world.do(world.log.queue("picked").put("picked-new", 1))
    expect(page.locator("#live")).to_contain_text("picked-new")
    expect(letters.locator("input[name^=select-]:checked")).to_have_count(2)
    expect(summary).to_have_text("Revive 2 selected…")
    summary.click()
    assert page.evaluate(AUDIT) == []
    page.get_by_role("button", name="Revive selected").click()
    expect(page.locator(".flash")).to_contain_text(re.compile(r"Revived 2 jobs of picked \(\d+ as \d+, \d+ as \d+\)\."))
    assert [letter.key for letter in world.do(world.log.queue("picked").dead())] == ["picked-dead-1"]


def test_a_selection_works_without_scripts(visit, world):
    """There is no box for all of them then; nothing ticked is an answer that says so."""
    fill(world, "plain")
    page = visit("/console/queues?name=plain", java_script_enabled=False, expected=("400",)).page
    waiting = page.get_by_role("region", name="Waiting jobs")
    expect(waiting.get_by_label("Select all on this page")).to_be_hidden()
    for number in (0, 2):
        waiting.get_by_label(re.compile(f"plain-waiting-{number}")).check()
    page.locator("summary", has_text="Cancel selected").click()
    page.get_by_role("textbox", name="Reason", exact=True).locator("visible=true").fill("not needed")
    page.get_by_role("button", name="Cancel selected").click()
    expect(page.locator(".flash")).to_contain_text(re.compile(r"Cancelled 2 jobs of plain \(\d+, \d+\)\."))
    assert [info.key for info in world.do(world.log.queue("plain").peek())] == ["plain-waiting-1"]
    page.locator("summary", has_text="Revive selected").click()
    page.get_by_role("button", name="Revive selected").click()
    expect(page.locator(".wrong")).to_contain_text("no job is selected")


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_a_chart_tells_its_values_on_hover(visit, jobs, monkeypatch, width, dark):
    """And what is new waits meanwhile: else the title would go away before it is read."""
    points = slots()
    monkeypatch.setattr(QueueMeter, "points", lambda self, name: points)
    page = visit("/console/queues?name=letters", width=width, dark=dark).page
    chart = page.get_by_role("img", name=re.compile("^Jobs per second"))
    slot = chart.locator("rect").nth(90)
    slot.hover()
    assert slot.locator("title").text_content() == "22:58:20 UTC: put 183, done 183, failed 0"
    assert slot.evaluate("one => getComputedStyle(one).fillOpacity") != "1"
    handle = slot.element_handle()
    points.append(points[-1])
    page.wait_for_timeout(2600)  # longer than between two looks
    assert handle.evaluate("one => one.isConnected")
    page.mouse.move(1, 1)
    expect(page.get_by_role("img", name=re.compile("^Jobs per second")).locator("rect")).to_have_count(121)
    box = page.locator(".plot").first.bounding_box()
    assert box["x"] + box["width"] <= width


def test_the_history_goes_on_page_by_page(visit, world):
    async def prepare() -> None:
        queue = world.log.queue("many")
        await queue.declare(keep_done="1h")
        for number in range(30):
            await queue.put(f"many-{number}", 1)
            (job,) = await queue.claim(1)
            await job.done()

    world.do(prepare())
    page = visit("/console/queues?name=many").page
    history = page.get_by_role("region", name="History")
    expect(history.locator("tbody tr")).to_have_count(25)
    page.get_by_role("link", name="Older").click()
    expect(history.locator("tbody tr")).to_have_count(5)
    expect(history).to_contain_text("many-0")
    page.locator("#of-key").fill("many-7")
    page.locator("#of-key").press("Enter")
    expect(history.locator("tbody tr")).to_have_count(1)
