"""The console in a real browser: every page and action, light and dark, wide and narrow, whole and broken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from playwright.sync_api import expect

from everlog.config import ServerConfig
from everlog.console import problems
from everlog.core.events import Event
from everlog.pipeline.phases import PHASES
from everlog.queues.priority import Priority
from everlog.testing.replication import replicate
from tests.browser.world import HOSTILE, VISITS, World

AUDIT = (Path(__file__).parent / "helper.js").read_text()

PAGES = {
    "flow": "/",
    "journals": "/console/journal",
    "keys": "/console/journal?topic=orders",
    "journal": "/console/journal?topic=orders&id=order-1",
    "scrub": "/console/journal?topic=orders&id=order-3&at=3",
    "absent": "/console/journal?topic=orders&id=nobody",
    "tags": "/console/tags",
    "tag": "/console/tags?tag=eu",
    "projections": "/console/projections",
    "projection": "/console/projections?name=parcels",
    "view": "/console/projections?name=visits",
    "queues": "/console/queues",
    "queue": "/console/queues?name=mails",
    "why": "/console/queues?name=mails&key=later",
    "documents": "/console/documents",
    "document": "/console/documents?path=articles/hello&old=1&new=3",
    "collection": "/console/documents?path=goods~&filter=price%3E4&sort=-price",
    "pipeline": "/console/pipeline",
    "operations": "/console/operations",
    "search": "/console/search?q=eu",
    "nothing": "/console/search?q=nothing-like-this",
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_is_readable_for_everybody(visit, width, dark):
    """Names, structure, contrast, no sideways scrolling; nothing from elsewhere; nothing in the browser's log."""
    seen = visit("/", width=width, dark=dark)
    for name, path in PAGES.items():
        seen.open(path)
        expect(seen.page.locator("main h1")).to_have_count(1)
        findings = seen.page.evaluate(AUDIT)
        assert findings == [], f"{name} at {width} px: " + "\n".join(findings)


def test_the_two_columns_of_a_queue_fit_narrow_windows(visit, world):
    """Also with a word without an end in one of them, and a form open."""
    key = "k" * 300
    worker = "w" * 300

    async def prepare() -> None:
        queue = world.log.queue("narrow")
        await queue.put(key, 1)
        await queue.claim(1, owner=worker)
        await queue.put("other", 1, priority=Priority.UPDATES)

    world.do(prepare())
    for width in (1024, 390):
        page = visit(f"/console/queues?name=narrow&key={key}", width=width).page
        expect(page.locator(".answer")).to_contain_text(worker)
        page.locator(".answer summary").click()
        assert page.evaluate(AUDIT) == [], f"at {width} px"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_errors_and_open_forms_are_readable_too(visit, width, dark):
    seen = visit("/console/queues?name=nothing-like-this", width=width, dark=dark, expected=("404",))
    expect(seen.page.locator(".wrong")).to_contain_text("there is no queue")
    assert seen.page.evaluate(AUDIT) == []
    seen.open("/console/projections?name=parcels")
    seen.page.locator("summary", has_text="Skip this event").click()
    expect(seen.page.get_by_label("Reason")).to_be_visible()
    assert seen.page.evaluate(AUDIT) == []


def test_the_audit_finds_what_it_looks_for(visit):
    """An audit that cannot fail shows nothing."""
    seen = visit("/")
    seen.page.evaluate(
        """() => {
          const main = document.querySelector("main");
          const button = document.createElement("button");
          const grey = document.createElement("p");
          grey.textContent = "pale";
          grey.setAttribute("class", "note");
          grey.style.setProperty("color", "#ccc");
          const wide = document.createElement("div");
          wide.style.setProperty("width", "3000px");
          wide.textContent = "wide";
          main.append(button, grey, wide);
        }"""
    )
    found = "\n".join(seen.page.evaluate(AUDIT))
    assert "no name: <button>" in found
    assert "contrast" in found
    assert "the page is" in found


def test_every_page_has_a_twin_and_both_say_the_same(visit, world):
    """`.json` and `Accept` answer alike; the page links to its twin."""
    seen = visit("/")
    for path in PAGES.values():
        seen.open(path)
        twin = seen.page.locator(".foot a", has_text="JSON").get_attribute("href")
        answers = [
            seen.page.request.get(world.url + twin),
            seen.page.request.get(world.url + path, headers={"accept": "application/json"}),
        ]
        for answer in answers:
            assert answer.ok, (path, answer.text())
            assert answer.headers["content-type"].startswith("application/json")
        assert set(answers[0].json()) == set(answers[1].json())


def test_pages_are_complete_without_scripts(visit):
    """Everything can be read, found and scrubbed with forms and links alone."""
    seen = visit("/", java_script_enabled=False)
    page = seen.page
    expect(page.locator("article.box")).to_have_count(7)
    page.locator("#q").fill("order-1")
    page.locator("#q").press("Enter")
    page.get_by_role("link", name="orders:order-1", exact=False).click()
    expect(page.locator("ol.timeline li.event").first).to_be_visible()
    expect(page.locator("time").first).to_contain_text("ago")
    page.get_by_label("One record earlier").click()
    expect(page.get_by_role("heading", name="As it was")).to_be_visible()
    page.get_by_title(re.compile("Colours")).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_theme_is_kept_and_wins_over_the_system(visit):
    seen = visit("/console/queues", dark=True)
    page, paper = seen.page, "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    for _ in range(2):
        page.get_by_title(re.compile("Colours")).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate(paper) != dark
    seen.open("/console/tags")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_keys_of_the_keyboard(visit):
    """A slash searches, Escape leaves, Tab reaches everything and shows where it is."""
    seen = visit("/console/queues?name=mails")
    page = seen.page
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.type("/")
    page.keyboard.type("mails")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="queue mails").click()
    expect(page).to_have_url(re.compile("name=mails"))
    page.locator("body").press("Tab")
    reached = []
    for _ in range(25):
        reached.append(
            page.evaluate(
                """() => { const e = document.activeElement, s = getComputedStyle(e);
                return [e.tagName, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; }"""
            )
        )
        page.keyboard.press("Tab")
    assert all(shown for _, shown in reached), reached
    assert {"A", "INPUT", "BUTTON"} <= {tag for tag, _ in reached}


def test_hostile_text_is_only_text(visit, world):
    """Keys, payloads, tags, errors, reasons and queries with markup in them show up as they are, everywhere."""
    seen = visit("/", expected=("400", "404"))
    key = quote(HOSTILE, safe="")
    shown = [
        f"/console/journal?topic=orders&id={key}",
        "/console/journal?topic=orders&id=order-1",
        "/console/journal?topic=orders",
        "/console/tags",
        "/console/tags?tag=eu",
        "/console/projections?name=totals",
        "/console/projections?name=parcels",
        "/console/queues?name=mails",
        "/console/documents?path=articles/hello",
        "/console/pipeline",
        f"/console/search?q={key}",
        f"/console/journal?topic={key}&id=x",
    ]
    refused = [
        f"/console/queues?name=mails&key={key}&text={key}",
        f"/console/documents?path={key}",
        f"/console/documents?path=goods~&filter={key}",
        f"/console/queues?name={key}",
        f"/console/projections?name={key}",
        f"/console/tags?tag=eu&after={key}",
    ]
    for path in shown + refused:
        seen.open(path)
        assert seen.page.locator("main script, main b").count() == 0, path
        if path in shown:
            assert re.search("<(script|b)>", seen.page.locator("main").text_content()), path
    # The same through the live part, which arrives by another way.
    seen.open("/console/journal?topic=orders&id=order-1")
    world.do(world.log.journal("orders").append("order-1", Event(HOSTILE + "live")))
    expect(seen.page.locator("#live")).to_contain_text(HOSTILE + "live")
    assert seen.page.locator("main script").count() == 0


def test_the_policy_allows_nothing_inline(visit):
    seen = visit("/", expected=("Content Security Policy", "Content-Security-Policy"))
    ran = seen.page.evaluate(
        """async () => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          await new Promise((done) => setTimeout(done, 100));
          return window.ran === true;
        }"""
    )
    assert not ran
    policy = seen.open("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_a_click_is_not_lost_to_a_live_part(visit, world):
    """What is new waits until the button is released: else it would be released over another element."""
    queue = world.log.queue("pressed")
    world.do(queue.put("first", 1))
    page = visit("/console/queues?name=pressed").page
    page.locator("summary.button").first.hover()
    page.mouse.down()
    world.do(queue.put("second", 1))
    page.wait_for_timeout(2600)  # longer than between two looks
    page.mouse.up()
    expect(page.locator("details.menu[open]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("second").first).to_be_visible()


def test_live_parts_follow_and_can_be_paused(visit, world):
    """What is appended shows up by itself; paused, nothing moves, and the address says so."""
    seen = visit("/console/journal?topic=carts&id=cart-1")
    page, carts = seen.page, world.log.journal("carts")
    world.do(carts.append("cart-1", Event("first news")))
    expect(page.locator("#live")).to_contain_text("first news")
    page.locator("#pause").click()
    expect(page.locator("#pause")).to_have_text("Paused")
    expect(page).to_have_url(re.compile("paused=1"))
    world.do(carts.append("cart-1", Event("second news")))
    page.wait_for_timeout(2600)  # longer than between two looks: nothing may come
    expect(page.locator("#live")).not_to_contain_text("second news")
    page.locator("#pause").click()
    expect(page.locator("#live")).to_contain_text("second news")
    seen.open("/console/journal?topic=carts&id=cart-1&paused=1")
    expect(page.locator("#pause")).to_have_text("Paused")


def test_what_is_new_waits_while_somebody_types(visit, world):
    seen = visit("/console/queues?name=pages")
    page = seen.page
    page.locator("#key").fill("half typ")
    world.do(world.log.queue("pages").put("page-new", "x"))
    page.wait_for_timeout(2600)
    assert page.locator("#key").input_value() == "half typ"
    page.locator("#key").press("Escape")
    expect(page.locator("#live")).to_contain_text("page-new")


def test_the_flow_shows_all_parts(visit):
    page = visit("/").page
    for part in ("Log", "Pipeline", "Store", "Tags", "Projections", "Queues", "Documents"):
        heading = page.get_by_role("heading", name=part, exact=True)
        expect(page.locator("article.box").filter(has=heading)).to_be_visible()
    for part, heading in (("queues", "jobs ready"), ("pipeline", "records behind"), ("store", "records/s applied")):
        box = page.locator(f"#box-{part}").locator("xpath=ancestor::article")
        expect(box.locator(".big")).to_contain_text(heading)


def test_a_journal_shows_where_each_event_comes_from(visit, world):
    """What the pipeline has not applied is from the tail; after it has, from the store; marks and deletes are there."""
    log = world.log

    async def prepare() -> None:
        orders = log.journal("orders")
        await orders.append("told", [Event("a", tags={"eu"}), Event("b"), Event("c")])
        await replicate(log)
        await orders.snapshots.save("told", seq_nr=2, payload={"sum": 2})
        await orders.delete("told", to=1)
        await orders.append("told", Event("d"))

    world.do(prepare())
    page = visit("/console/journal?topic=orders&id=told").page
    items = page.locator("ol.timeline > li")
    texts = [" ".join(text.split()) for text in items.all_inner_texts()]
    kinds = [re.sub(r" .*", "", one.get_attribute("class")) for one in items.all()]
    assert kinds == ["event", "delete", "event", "snapshot", "event"], texts
    assert "tail" in texts[0]
    assert "delete up to #1" in texts[1]
    assert "store" in texts[2]
    page.get_by_title("Scrub to this position").last.click()
    expect(page.locator(".past")).to_contain_text("3 events could be read")


def test_the_pipeline_shows_where_its_time_goes(visit, world):
    """Each phase with a bar for each of the last cycles, rows by table, and the slowest journals; also without
    scripts."""
    page = visit("/console/pipeline", java_script_enabled=False).page
    phases = page.get_by_role("region", name="Phases")
    expect(phases.locator("tbody tr")).to_have_count(len(PHASES))
    bars = phases.get_by_role("img").first
    assert bars.get_attribute("aria-label").startswith(f"{PHASES[0].name}, oldest first, in ms: ")
    assert bars.locator("path").get_attribute("d").count("M") == 12
    expect(page.get_by_role("region", name="Rows written")).to_contain_text("24,680")
    page.get_by_role("region", name="Slowest journals").get_by_role("link", name="order-1").click()
    expect(page).to_have_url(re.compile("/console/journal.*topic=orders&id=order-1"))
    expect(page.locator("ol.timeline li.event").first).to_be_visible()


class TestActions:
    """Each action, from its button to the operations log."""

    @pytest.fixture
    def at(self, visit):
        return lambda path, **more: visit(path, **more).page

    def done(self, page, action: str) -> None:
        """The notice is a sentence; which action it is about stands in its data."""
        expect(page.locator(f".flash[data-action='{action}'][data-outcome=done]")).to_contain_text(
            re.compile(r"\w+ .*\.")
        )

    def test_pause_and_resume_a_projection(self, at, world):
        page = at("/console/projections")
        page.get_by_role("button", name="Pause totals").click()
        self.done(page, "projection.pause")
        assert world.do(world.log.projections.get("totals")).paused
        page.get_by_role("button", name="Resume totals").click()
        self.done(page, "projection.resume")
        assert not world.do(world.log.projections.get("totals")).paused

    def test_replay_and_drop_dead_letters(self, at, world):
        page = at("/console/projections?name=totals")
        page.get_by_role("button", name=re.compile("^Replay the event")).first.click()
        self.done(page, "projection.replay")
        page.locator("summary", has_text="Drop all").click()
        page.locator(".links .menu[open] input[name=reason]").fill("not needed")
        page.locator(".links .menu[open] button").click()
        self.done(page, "projection.forget")
        assert world.do(world.log.projections.dead_letters("totals")) == []

    def test_skip_an_event_needs_a_reason(self, at, world):
        page = at("/console/projections?name=parcels")
        page.locator("summary", has_text="Skip this event").click()
        page.locator(".problem .menu[open] button").click()
        assert page.locator(".flash").count() == 0, "the browser asks for the reason"
        page.locator(".problem .menu[open] input[name=reason]").fill("a test order")
        page.locator(".problem .menu[open] button").click()
        self.done(page, "projection.skip")
        page.goto(world.url + "/console/operations")
        expect(page.locator("tbody tr").first).to_contain_text("a test order")

    def because(self, page, label: str, reason: str) -> None:
        """Open a form, say why, send it."""
        page.locator("summary", has_text=label).click()
        page.locator(".menu[open] input[name=reason]").fill(reason)
        page.locator(".menu[open] button").click()

    def test_rebuild_a_view_switch_go_back_and_drop(self, at, world):
        """From the button to a bar that moves, to the copy that is read; all of it without the handler's code here."""
        page = at("/console/projections?name=visits")
        world.do(world.gate.close(after=5))
        page.get_by_role("button", name="Rebuild", exact=True).click()
        self.done(page, "projection.rebuild")
        expect(page.get_by_label("Copy 1: 25 %")).to_be_visible()
        expect(page.locator("#live")).to_contain_text(f"5 of {VISITS} events")
        assert page.evaluate(AUDIT) == []
        world.do(world.gate.open())
        page.get_by_role("button", name="Switch to copy 1").click()
        self.done(page, "projection.switch")
        expect(page.locator("#live")).to_contain_text("Copy 1 is read. Copy 0 is kept to go back to.")
        assert world.do(world.log.projections.view("visits").fetch("SELECT count(*) FROM visits")) == [(VISITS,)]
        self.because(page, "Go back to copy 0", "the new one is too slow")
        self.done(page, "projection.switch-back")
        expect(page.locator("#live")).to_contain_text("Copy 0 is read.")
        world.do(world.gate.close(after=3))
        page.get_by_role("button", name="Rebuild", exact=True).click()
        expect(page.get_by_label("Copy 2: 15 %")).to_be_visible()
        self.because(page, "Drop the new copy", "a mistake")
        self.done(page, "projection.abort")
        world.do(world.gate.open())
        expect(page.get_by_role("button", name="Rebuild", exact=True)).to_be_visible()
        assert world.do(world.log.projections.copies("visits")).building is None

    def test_verify_a_view(self, at, world):
        page = at("/console/projections?name=visits")
        world.do(world.gate.close(after=8))
        page.get_by_role("button", name="Verify", exact=True).click()
        self.done(page, "projection.verify")
        expect(page.get_by_label("Verification: 40 %")).to_be_visible()
        page.get_by_role("button", name="Stop verifying").click()
        self.done(page, "projection.cancel-verify")
        world.do(world.gate.open())
        page.get_by_role("button", name="Verify", exact=True).click()
        expect(page.locator("#live")).to_contain_text(f"as counted again, visits with {VISITS} rows")
        damage = "DELETE FROM visits WHERE rowid = (SELECT min(rowid) FROM visits)"
        world.do(world.log.projections.view("visits").execute(damage))
        page.get_by_role("button", name="Verify", exact=True).click()
        found = page.locator(".problem", has_text="not what its events add up to")
        expect(found).to_contain_text("1 missing and 0 too many")
        expect(found).to_contain_text("rebuild it, then switch")
        assert page.evaluate(AUDIT) == []
        page.goto(world.url + "/")
        expect(page.locator(".problem", has_text="The view of visits is not what its events add up to")).to_be_visible()
        page.goto(world.url + "/console/projections?name=visits")
        page.get_by_role("button", name="Rebuild", exact=True).click()
        page.get_by_role("button", name=re.compile("^Switch to copy")).click()
        self.done(page, "projection.switch")
        expect(page.locator(".problem", has_text="not what its events add up to")).to_have_count(0)

    def test_a_rebuild_that_nobody_can_do_says_what_to_start(self, at, world):
        page = at("/console/projections?name=left")
        page.get_by_role("button", name="Rebuild", exact=True).click()
        self.done(page, "projection.rebuild")
        expect(page.locator("#live")).to_contain_text("no process runs it: start everlog projections run module:app")
        self.because(page, "Withdraw the rebuild", "nobody will")
        self.done(page, "projection.abort")
        page.goto(world.url + "/console/operations")
        expect(page.locator("tbody tr").first).to_contain_text("nobody will")

    def test_pause_and_resume_a_queue(self, at, world):
        page = at("/console/queues?name=pages")
        page.get_by_role("button", name="Pause pages").click()
        self.done(page, "queue.pause")
        expect(page.locator("#live")).to_contain_text("The queue is paused")
        page.get_by_role("button", name="Resume pages").click()
        self.done(page, "queue.resume")

    def test_put_dead_letters_back_one_and_all_that_match(self, at, world):
        page = at("/console/queues?name=mails")
        page.get_by_role("button", name="Revive bad-0").click()
        self.done(page, "queue.revive")
        page.locator("#text").fill("bad-1")
        page.locator("#text").press("Enter")
        page.get_by_role("button", name="Revive all 1").click()
        self.done(page, "queue.revive-all")
        left = {letter.key for letter in world.do(world.log.queue("mails").dead())}
        assert left == {"bad-2", "bad-3"}

    def test_act_on_all_that_match(self, at, world):
        async def prepare() -> None:
            queue = world.log.queue("bulk")
            for number in range(6):
                await queue.put(f"a-{number}", 1, priority=20)
                await queue.put(f"b-{number}", 1)

        world.do(prepare())
        page = at("/console/queues?name=bulk")
        page.locator("#find").fill("a-")
        page.locator("#find").press("Enter")
        self.because(page, "Cancel all 6", "not needed")
        self.done(page, "queue.cancel-all")
        assert world.do(world.log.queue("bulk").stats()).ready == 6
        page.locator("#text").fill("a-")
        page.locator("#text").press("Enter")
        self.because(page, "Drop all 6", "spam")
        self.done(page, "queue.forget-all")
        found = world.do(world.log.queue("bulk").stats())
        assert (found.ready, found.dead) == (6, 0)

    def test_drop_a_dead_letter_and_acknowledge_a_flag(self, at, world):
        page = at("/console/queues?name=mails")
        page.locator("summary[aria-label^='Drop bad']").first.click()
        page.locator(".menu[open] input[name=reason]").fill("spam")
        page.locator(".menu[open] button").click()
        self.done(page, "queue.forget")
        assert len(world.do(world.log.queue("mails").dead())) == 1
        page.get_by_role("button", name="Acknowledge failed").click()
        self.done(page, "queue.acknowledge")

    def test_ask_why_and_cancel(self, at, world):
        page = at("/console/queues?name=mails")
        page.locator("#key").fill("later")
        page.get_by_role("button", name="Ask").click()
        expect(page.locator(".answer")).to_contain_text("It is not due")
        page.locator(".answer summary").click()
        page.locator(".answer input[name=reason]").fill("changed my mind")
        page.locator(".answer .menu[open] button").click()
        self.done(page, "queue.cancel")
        expect(page.locator(".answer")).to_contain_text("dead letter")

    def test_retry_and_skip_a_record_in_quarantine(self, at, world):
        async def prepare() -> None:
            await world.log.journal("orders").append("poisoned", Event("good"))
            await world.poison("orders", "poisoned")
            await replicate(world.log)

        world.do(prepare())
        page = at("/console/pipeline")
        page.get_by_role("button", name="Retry poisoned").click()
        self.done(page, "quarantine.retry")
        page.locator("summary[aria-label='Skip poisoned']").click()
        page.locator(".menu[open] input[name=reason]").fill("garbage")
        page.locator(".menu[open] button").click()
        self.done(page, "quarantine.skip")
        world.do(replicate(world.log))
        assert world.do(world.log.journal("orders").head("poisoned")).halted_at is None

    def test_an_action_that_fails_says_so_and_is_in_the_log(self, at, world):
        page = at("/console/queues?name=mails&paused=1", expected=("400",))  # what is changed here stays
        gone = page.get_by_role("button", name=re.compile("^Revive bad")).first
        form = gone.locator("xpath=ancestor::form")
        form.evaluate("form => { form.elements.entry.value = '999999'; }")
        gone.click()
        expect(page.locator(".wrong")).to_contain_text("another operator was quicker")
        page.goto(world.url + "/console/operations")
        expect(page.locator("tbody tr").first).to_contain_text("failed")


class TestBroken:
    """With each thing broken in turn, the first page says what is wrong and what to do."""

    @pytest.fixture
    def flow(self, visit, world):
        yield lambda **more: visit("/", **more).page
        world.do(world.say())

    def says(self, page, what: str, remedy: str, part: str | None = None) -> None:
        found = page.locator(".problem", has_text=what).first
        expect(found).to_contain_text(remedy)
        expect(page.locator("#chip")).to_contain_text("problem")
        if part is not None:
            box = page.locator("article.box").filter(has=page.locator(f"#box-{part}"))
            expect(box).to_have_class(re.compile("bad|warn"))

    def test_pipeline_stopped(self, flow, world):
        world.do(world.log.journal("orders").append("order-1", Event("waits")))
        world.do(world.say("stopped"))
        self.says(flow(), "The pipeline is stopped", "everlog up", "pipeline")

    def test_pipeline_lost(self, flow, world):
        world.do(world.say("running", updated_ms=1_700_000_000_000))
        self.says(flow(), "stopped reporting without shutting down", "nothing is lost", "pipeline")

    def test_pipeline_retrying(self, flow, world):
        world.do(world.say("retrying", last_error=f"no space left {HOSTILE}"))
        self.says(flow(), "fails and tries again", "Remove the cause", "pipeline")

    def test_poison_record(self, flow, world):
        async def prepare() -> None:
            await world.poison("carts", "cart-2")
            await replicate(world.log)

        world.do(prepare())
        page = flow()
        self.says(page, "in quarantine", "skip it with a reason", "store")
        page.locator(".problem", has_text="in quarantine").get_by_role("link").click()
        expect(page.locator("[aria-label=Quarantine]")).to_contain_text("cart-2")
        page.get_by_role("link", name="cart-2").click()
        expect(page.locator(".problem")).to_contain_text("halted")

    def test_dead_letters(self, flow):
        page = flow()
        self.says(page, "The queue mails has", "Look at the reasons", "queues")

    def test_topic_left_out(self, flow, world):
        world.do(world.say(left_out={"orders": "the topic was created again"}, tags_wait_for=["orders/0"]))
        page = flow()
        self.says(page, "The topic orders is left out", "Repair the topic", "pipeline")
        self.says(page, "Views by tag wait", "Repair or retire", "tags")

    def test_full_queue(self, flow, world, monkeypatch):
        """With smaller limits than real ones: nobody waits a minute for a test."""
        monkeypatch.setattr(problems, "MIN_FULL_JOBS", 5)
        monkeypatch.setattr(problems, "IDLE_S", -1.0)
        page = flow()
        self.says(page, "The queue mails is full", "Start more workers", "queues")
        self.says(page, "ready that no worker takes", "everlog work")

    def test_store_down(self, flow, world):
        with world.without_store():
            page = flow(expected=("503",))
            self.says(page, "The store does not answer", "nothing is lost", "store")
            page.goto(world.url + "/console/pipeline")
            expect(page.locator(".problem").first).to_contain_text("The store does not answer")
            expect(page.locator("#live")).not_to_contain_text("every record could be applied")
            page.goto(world.url + "/console/queues")
            expect(page.locator(".wrong")).to_contain_text("the queues cannot be read")
        page.goto(world.url + "/")
        expect(page.locator(".problem", has_text="The store does not answer")).to_have_count(0)


def test_a_stranger_cannot_act(visit, world):
    """The form of another site, a wrong secret, no secret: refused, and nothing was done."""
    seen = visit("/console/queues")
    fields = {"action": "queue.pause", "name": "mails", "back": "/"}
    csrf = seen.page.locator("input[name=csrf_token]").first.get_attribute("value")
    ask = seen.page.request.post
    where = world.url + "/console/act"
    assert ask(where, form=fields).status == 403
    assert ask(where, form={**fields, "csrf_token": "wrong"}).status == 403
    foreign = {"origin": "https://evil.example"}
    assert ask(where, form={**fields, "csrf_token": csrf}, headers=foreign).status == 403
    assert not world.do(world.log.queue("mails").stats()).paused
    answer = ask(
        where, form={**fields, "csrf_token": csrf, "back": "//evil.example"}, headers={"accept": "application/json"}
    )
    assert json.loads(answer.text())["outcome"] == "done"
    world.do(world.log.queue("mails").resume())


def test_logging_in_acting_and_logging_out(browser, tmp_path):
    """With tokens: every page leads to the log-in and back; the session may act as its token may; then it is over."""
    tokens = pytest.importorskip("everlog.server.security.tokens", reason="this server knows no tokens")
    token, kept = tokens.make_token("ann", ["admin"], 0)
    world = World(tmp_path)
    world.config = msgspec.structs.replace(world.config, server=ServerConfig(tokens=(kept,)))
    with world:
        world.do(world.log.queue("mails").put("m-1", 1))
        context = browser.new_context()
        page = context.new_page()
        page.goto(world.url + "/console/queues?name=mails")
        expect(page).to_have_url(re.compile("/login"))
        page.get_by_label("Token").fill(token)
        page.get_by_role("button").click()
        expect(page).to_have_url(re.compile(r"/console/queues\?name=mails$"))
        expect(page.locator("#pause")).to_have_text("Live")
        page.get_by_role("button", name="Pause mails").click()
        expect(page.locator(".flash")).to_contain_text("Paused mails: no worker takes a job of it")
        page.goto(world.url + "/console/operations")
        expect(page.locator("tbody tr").first).to_contain_text("ann")
        page.get_by_role("button", name="Log out").click()
        page.goto(world.url + "/console/operations")
        expect(page).to_have_url(re.compile("/login"))
        context.close()
