"""Real outages in a real browser: store, pipeline and broker are taken away from a server that goes on.

The first page says within seconds what is wrong and what to do; every page answers in words; then all is well again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import expect

import everlog.sync
from everlog.cluster.local import LocalCluster
from everlog.console.renderer import NAV, url
from everlog.core.events import Event
from tests.browser.conftest import PATIENCE
from tests.fixtures.servers import running

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

PAGES = [
    *(url(name) for name, _ in NAV),
    "/console/journal?topic=orders&id=o-1",
    "/console/tags?tag=eu",
    "/console/documents?path=articles/hello",
    "/console/search?q=o-1",
]
# Of a server that hangs every page waits for a few seconds: some of them are enough.
SOME = ["/", "/console/queues", "/console/operations", "/console/journal?topic=orders&id=o-1"]


@contextmanager
def command(local: LocalCluster, *words: str, output: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """`everlog …` on the cluster; killed at the end with all that it started, if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "everlog.cli", *words, "--json", "--config", str(local.config_file)],
        stdout=output,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.fixture(scope="module")
def local(tmp_path_factory: Any) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        with everlog.sync.connect(cluster.config_file) as log:
            log.journal("orders").append("o-1", [Event("a", tags={"eu"}), Event("b")])
            log.documents.put("articles/hello", {"title": "Hello"}, wait=True)
        yield cluster


@pytest.fixture(scope="module")
def server(local: LocalCluster) -> Iterator[str]:
    with command(local, "serve", "--port", "0", output=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]


@pytest.fixture
def page(browser: Any, server: str) -> Iterator[Any]:
    """The first page, on which everything keeps up."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    found = context.new_page()
    found.goto(server)
    yield found
    context.close()


def keeps_up(page: Any) -> None:
    """In the end: servers start, Spark does, and what failed is tried again after a pause."""
    expect(page.locator(".calm")).to_be_visible(timeout=120_000)
    expect(page.locator("#chip")).to_have_text("All well")


def says(page: Any, what: str, remedy: str, part: str) -> None:
    """On the page that is open: it follows by itself."""
    found = page.locator(".problem", has_text=what)
    expect(found.first).to_contain_text(remedy)
    expect(page.locator("#chip")).to_contain_text("problem")
    box = page.locator("article.box").filter(has=page.locator(f"#box-{part}"))
    expect(box).to_have_class(re.compile("bad|warn"))


def pages_answer(page: Any, server: str, paths: list[str] = PAGES) -> dict[str, int]:
    """Every page says something, soon; what cannot be shown is said in words, and never as a fault of the server."""
    other = page.context.new_page()
    answers = {}
    for path in paths:
        answer = other.goto(server + path, timeout=PATIENCE)
        answers[path] = answer.status
        assert answer.status in (200, 503), (path, answer.status, answer.text())
        if answer.status == 503:
            expect(other.locator(".wrong")).to_contain_text("The Flow page says which part does not answer")
        expect(other.locator("#chip")).to_contain_text("problem")
    twin = other.request.get(server + path, headers={"accept": "application/json"}, timeout=PATIENCE)
    assert (twin.status, "error" in twin.json()) == (answer.status, answer.status == 503)
    other.close()
    return answers


@pytest.fixture(scope="module")
def pipeline(local: LocalCluster) -> Iterator[subprocess.Popen[str]]:
    with command(local, "replicate") as process:
        yield process


def test_the_store_hangs_and_is_killed(local: LocalCluster, pipeline: Any, page: Any, server: str) -> None:
    """Cassandra takes connections but does not answer; then it is gone; then it is back."""
    cassandra = local.server("cassandra-1").process
    keeps_up(page)
    assert cassandra.pid is not None
    os.kill(cassandra.pid, signal.SIGSTOP)
    try:
        says(page, "The store does not answer", "everlog status", "store")
        assert 503 in pages_answer(page, server, SOME).values()
    finally:
        os.kill(cassandra.pid, signal.SIGCONT)
    keeps_up(page)
    cassandra.kill()
    says(page, "The store does not answer", "nothing is lost", "store")
    assert 503 in pages_answer(page, server).values()
    local.up()
    keeps_up(page)
    page.goto(server + "/console/journal?topic=orders&id=o-1")
    expect(page.locator("ol.timeline")).to_be_visible()


def test_the_broker_hangs_and_is_killed(local: LocalCluster, pipeline: Any, page: Any, server: str) -> None:
    kafka = local.server("kafka-1").process
    keeps_up(page)
    assert kafka.pid is not None
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        says(page, "The log does not answer", "everlog status", "log")
        assert 503 in pages_answer(page, server, SOME).values()
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    keeps_up(page)
    kafka.kill()
    says(page, "The log does not answer", "Check that its servers run", "log")
    assert 503 in pages_answer(page, server).values()
    local.up()
    keeps_up(page)


def test_the_pipeline_is_killed(local: LocalCluster, pipeline: Any, page: Any, server: str) -> None:
    """Its process and Spark's are gone at once, and say nothing; another one goes on."""
    keeps_up(page)
    kill(pipeline)
    append = page.request.post(f"{server}/journals/orders/o-1", data={"events": [{"payload": "waits"}]})
    assert append.status == 201, append.text()
    says(page, "The pipeline has said nothing for", "everlog replicate", "pipeline")
    assert set(pages_answer(page, server).values()) == {200}, "reads are right without it"
    expect(page.locator(".problem.bad")).to_contain_text("stopped reporting without shutting down", timeout=60_000)
    with command(local, "replicate"):
        keeps_up(page)
