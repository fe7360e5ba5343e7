"""One browser and one server for all tests of the console."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.world import World, fill, fill_projections, fill_view

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright's Python package is not installed")
# Milliseconds until something is given up that should be on a page: machines that run tests do other things, too.
PATIENCE = 30_000
CHROMIUM = os.environ.get("EVERLOG_CHROMIUM") or "/usr/bin/chromium"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    if not Path(CHROMIUM).exists():
        reason = f"no Chromium at {CHROMIUM}: install the package chromium, or set EVERLOG_CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        sync_api.expect.set_options(timeout=PATIENCE)
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=4 * PATIENCE)
        yield found
        found.close()


@pytest.fixture(scope="package")
def world(tmp_path_factory: Any) -> Iterator[World]:
    """A server whose console may act, on a log with something of everything."""
    with World(tmp_path_factory.mktemp("world")) as made:
        made.do(fill(made.log))
        made.do(fill_projections(made))
        made.do(fill_view(made))
        made.do(made.say())
        yield made


class Watched:
    """A page of the browser that must neither complain nor ask anybody else for anything."""

    def __init__(self, page: Any, world: World) -> None:
        self.page = page
        self.url = world.url
        self.complaints: list[str] = []
        self.expected: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._request)
        page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(text in message.text for text in self.expected):
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.url) and not request.url.startswith("data:"):
            self.complaints.append(f"request to {request.url}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.url + path, wait_until="load")
        assert answer is not None
        return answer


@pytest.fixture
def visit(browser: Any, world: World) -> Iterator[Callable[..., Watched]]:
    """`visit("/console/queues", width=390, dark=True)`: a fresh page there; at the end none may have complained."""
    opened: list[tuple[Any, Watched]] = []

    def go(path: str, *, width: int = 1280, dark: bool = False, expected: tuple[str, ...] = (), **more: Any) -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", **more
        )
        context.set_default_timeout(PATIENCE)
        found = Watched(context.new_page(), world)
        found.expected += expected
        opened.append((context, found))
        found.open(path)
        return found

    yield go
    complaints = [one for _, watched in opened for one in watched.complaints]
    for context, _ in opened:
        context.close()
    assert complaints == []
