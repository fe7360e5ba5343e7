"""From a request to a page: as HTML, as JSON at the same address, or live as server-sent events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple

from litestar import Response
from litestar.exceptions import HTTPException
from litestar.response import Stream

from everlog.console.console import MAX_STREAMS, Console, ConsolePage, Context, Model, PageNotFound
from everlog.console.problems import Problem, find_problems
from everlog.console.renderer import HEADERS, changed, encode, render, url
from everlog.errors import (
    EverlogError,
    InvalidInput,
    StorageFailed,
)
from everlog.server.requests import AnyRequest, parameters
from everlog.server.security.principal import Principal, principal_of
from everlog.wire.errors import status_of

PATIENCE_S = 15.0
# While log or store are known not to answer, a page need not find that out by itself.
OUTAGE_PATIENCE_S = 4.0
LIVE_INTERVAL_S = 2.0
CHECKPOINT_INTERVAL_S = 10.0
WAIT = "The Flow page says which part does not answer. This page comes back with it; nothing is lost meanwhile."
THEMES = ("light", "dark", "auto")
THEME_COOKIE = "everlog_theme"

Form = Literal["html", "json", "live"]


class Visitor(NamedTuple):
    """Who asks. `csrf` is what the forms of a page send back; `session`: they logged in, and so can log out."""

    name: str
    may_act: bool
    csrf: str
    session: bool = False


def visitor_of(request: AnyRequest) -> Visitor:
    found = principal_of(request)
    return Visitor(found.name, found.may("admin"), found.csrf or "", found.session)


def form_of_answer(request: AnyRequest) -> Form:
    """What is asked for: `.json` and `.live` say it, else `Accept` does."""
    path = request.scope["path"]
    if path.endswith(".json"):
        return "json"
    if path.endswith(".live"):
        return "live"
    return "json" if wants_json(request) else "html"


def wants_json(request: AnyRequest) -> bool:
    accept = request.headers.get("accept", "").lower()
    return "application/json" in accept and "text/html" not in accept


async def answer_page(page: ConsolePage, request: AnyRequest) -> Response[Any]:
    """The page as it was asked for."""
    console: Console = request.app.state.console
    form = form_of_answer(request)
    given = parameters(request)
    if form == "live":
        return _live(page, request, console, given)
    principal = principal_of(request)
    status, model = await build(page, console, given, principal)
    if form == "json":
        return Response(encode(model), status_code=status, media_type="application/json", headers=HEADERS)
    values = await view(page, request, console, given, model)
    if "error" not in model and given.get("done", "").isdecimal() and not principal.limited:
        values["done"] = await _operation(console, int(given["done"][:18]))
    return Response(render(values["template"], **values), status_code=status, media_type="text/html", headers=HEADERS)


async def build(page: ConsolePage, console: Console, given: dict[str, str], visitor: Principal) -> tuple[int, Model]:
    """The model, or what went wrong as one."""
    log = console.log
    context = Context(log, console.sampler, console.operations, given, log.parts.clock.now_ms(), visitor)
    last = console.sampler.last
    patience = OUTAGE_PATIENCE_S if last is not None and last.errors else PATIENCE_S
    try:
        async with asyncio.timeout(patience):
            return 200, await page.build(context)
    except EverlogError as error:
        return page_status(error), {"error": {"what": str(error), "remedy": remedy_for(error)}}
    except TimeoutError:
        return 503, {"error": {"what": f"no answer in {patience:g} s", "remedy": WAIT}}


def page_status(error: EverlogError) -> int:
    """The status of a page that cannot be shown: as everywhere, but a page always comes back with log and store."""
    status = 404 if isinstance(error, PageNotFound) else status_of(error)
    return 503 if status == 500 and isinstance(error, StorageFailed) else status


def remedy_for(error: EverlogError) -> str:
    """What to do, where the message itself does not say it."""
    if isinstance(error, StorageFailed):
        return WAIT
    if isinstance(error, InvalidInput):
        return "Change it in the form or in the address."
    return "Try again" if error.retriable else ""


async def view(
    page: ConsolePage,
    request: AnyRequest,
    console: Console,
    given: dict[str, str],
    model: Model,
    *,
    fragment: bool = False,
) -> dict[str, Any]:
    """All that a template knows."""
    limited = principal_of(request).limited
    # A visitor of some documents sees nothing of the rest, not even how it is.
    problems = [] if limited else await current_problems(console)
    theme = request.cookies.get(THEME_COOKIE, "auto")
    visitor: Visitor = visitor_of(request)
    state = {name: value for name, value in given.items() if name not in ("done", "paused")}
    return {
        "template": "error.html" if "error" in model else page.template,
        "page": page,
        "m": model,
        "given": defaultdict(str, given),
        "here": lambda **changes: url(page.name, **changed(state, **changes)),
        "twin": url(page.name, ".json", **state),
        "stream": url(page.name, ".live", **state) if page.live else "",
        "paused": given.get("paused") == "1",
        "visitor": visitor,
        "problems": problems,
        "level": "bad" if any(one.level == "bad" for one in problems) else "warn" if problems else "",
        "theme": theme if theme in THEMES else "auto",
        "now_ms": console.log.parts.clock.now_ms(),
        "where": "" if limited else console.log.config.where,
        "limited": limited,
        "documents_topic": console.log.config.documents.topic,
        "base": str(request.base_url).rstrip("/"),
        "fragment": fragment,
        "done": None,
    }


async def current_problems(console: Console) -> list[Problem]:
    """As of the sampler's last look: a page of something else does not wait for a look at everything."""
    found = console.sampler.last or await console.sampler.latest()
    return find_problems(found, embedded=console.log.config.embedded)


async def _operation(console: Console, seq_nr: int) -> Any:
    try:
        return await console.operations.get(seq_nr)
    except EverlogError:
        return None  # it is only the message about what was done


def _live(page: ConsolePage, request: AnyRequest, console: Console, given: dict[str, str]) -> Response[Any]:
    if not page.live:
        raise HTTPException("this page has no live part", status_code=404)
    if console.streams >= MAX_STREAMS:
        raise HTTPException("too many pages are open: close some", status_code=503, headers={"Retry-After": "10"})
    return Stream(
        lambda: frames(page, request, console, given),
        media_type="text/event-stream",
        headers={**HEADERS, "Cache-Control": "no-store"},
    )


async def frames(
    page: ConsolePage, request: AnyRequest, console: Console, given: dict[str, str]
) -> AsyncIterator[bytes]:
    """The live part of a page, whenever it looks different; a checkpoint while it does not."""
    stopping: asyncio.Event = request.app.state.stopping
    loop = asyncio.get_running_loop()
    last, number, due = "", 0, loop.time() + CHECKPOINT_INTERVAL_S
    console.streams += 1
    try:
        while not stopping.is_set():
            _, model = await build(page, console, given, principal_of(request))
            values = await view(page, request, console, given, model, fragment=True)
            html = render(values["template"], **values)
            if html != last:
                last, number, due = html, number + 1, loop.time() + CHECKPOINT_INTERVAL_S
                frame = {"html": html, "problems": len(values["problems"]), "level": values["level"]}
                yield f"id: {number}\nevent: fragment\ndata: {encode(frame).decode()}\n\n".encode()
            elif loop.time() >= due:
                due = loop.time() + CHECKPOINT_INTERVAL_S
                yield f"id: {number}\nevent: checkpoint\ndata: {{}}\n\n".encode()
            try:
                async with asyncio.timeout(LIVE_INTERVAL_S):
                    await stopping.wait()
            except TimeoutError:
                continue
    finally:
        console.streams -= 1
