"""The routes of the console. Keys and names are parameters, never parts of a path: so a form without a script can
lead to them, no path trick is possible, and every page may have `.json` at its end."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post, route
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter
from litestar.response import Redirect

from everlog.console.actions import check_fields, with_selection
from everlog.console.answer import (
    THEME_COOKIE,
    THEMES,
    answer_page,
    page_status,
    remedy_for,
    view,
    visitor_of,
    wants_json,
)
from everlog.console.console import Console, ConsolePage
from everlog.console.pages.documents import DOCUMENTS
from everlog.console.pages.flow import FLOW
from everlog.console.pages.job import JOB
from everlog.console.pages.journal import JOURNAL
from everlog.console.pages.operations import OPERATIONS
from everlog.console.pages.pipeline import PIPELINE
from everlog.console.pages.projections import PROJECTIONS
from everlog.console.pages.queues import QUEUES
from everlog.console.pages.search import SEARCH
from everlog.console.pages.tags import TAGS
from everlog.console.renderer import HEADERS, STATIC, encode, render, static_file, url
from everlog.errors import EverlogError
from everlog.server.requests import AnyRequest, local_path, parameters
from everlog.server.security.guard import form_of

PAGES = [FLOW, JOURNAL, TAGS, PROJECTIONS, QUEUES, JOB, DOCUMENTS, PIPELINE, OPERATIONS, SEARCH]


def _page_route(page: ConsolePage) -> HTTPRouteHandler:
    async def show(request: AnyRequest) -> Response[Any]:
        return await answer_page(page, request)

    paths = [url(page.name), url(page.name, ".json")]
    paths += [url(page.name, ".live")] if page.live else []
    paths += ["/console"] if page is FLOW else []
    made = route(
        paths,
        http_method=["GET", "HEAD"],
        name=f"console.{page.name}",
        include_in_schema=False,
        opt={} if page.paths is None else {"paths": page.paths},
    )
    return made(show)


@get("/console/static/{name:str}", include_in_schema=False, opt={"scope": "public"})
async def get_static(name: Annotated[str, PathParameter(description="A file")]) -> Response[bytes]:
    """The style sheet, the script and the icon."""
    if name not in STATIC:
        raise NotFoundException("there is no such file")
    headers = {**HEADERS, "Cache-Control": "max-age=3600"}
    return Response(static_file(name), media_type=STATIC[name], headers=headers)


@get("/favicon.ico", include_in_schema=False, opt={"scope": "public"})
async def get_icon() -> Response[bytes]:
    """Browsers ask for it on pages that name no icon."""
    headers = {**HEADERS, "Cache-Control": "max-age=86400"}
    return Response(static_file("icon.svg"), media_type=STATIC["icon.svg"], headers=headers)


@get("/console/theme", include_in_schema=False, opt={"scope": "public"})
async def get_theme(request: AnyRequest) -> Redirect:
    """Light, dark, or as the system has it; kept in a cookie so that pages come in the right colours at once."""
    given = parameters(request)
    wanted = given.get("to") if given.get("to") in THEMES else "auto"
    answer = Redirect(local_path(given.get("back")), headers=HEADERS)
    answer.set_cookie(THEME_COOKIE, wanted, path="/", max_age=31_536_000, samesite="lax", httponly=True)
    return answer


# The operations log has more to say about an action than the guard knows.
@post("/console/act", status_code=200, include_in_schema=False, opt={"scope": "admin", "csrf": True, "audit": False})
async def act(request: AnyRequest) -> Response[Any]:
    """Do something, and say what was done on the page that it came from."""
    console: Console = request.app.state.console
    form, visitor = with_selection(await form_of(request)), visitor_of(request)
    name, back = form.get("action", ""), local_path(form.get("back"))
    try:
        action, target, reason = check_fields(name, form)
        done = await console.operations.perform(
            name,
            target,
            lambda: action.run(console.log, {**target, "reason": reason}),
            by=visitor.name,
            reason=reason,
        )
    except EverlogError as error:
        return await _failed(request, console, back, error)
    finally:
        console.sampler.forget()
    if wants_json(request):
        return Response(encode(done), media_type="application/json", headers=HEADERS)
    mark = "&" if "?" in back else "?"
    return Redirect(f"{back}{mark}done={done.seq_nr}", status_code=303, headers=HEADERS)


async def _failed(request: AnyRequest, console: Console, back: str, error: EverlogError) -> Response[Any]:
    """An action that did not work out: a page that says why."""
    model = {"error": {"what": str(error), "remedy": remedy_for(error), "back": back}}
    status = page_status(error)
    if wants_json(request):
        return Response(encode(model), status_code=status, media_type="application/json", headers=HEADERS)
    values = await view(OPERATIONS, request, console, {}, model)
    values["stream"] = ""
    return Response(render("error.html", **values), status_code=status, media_type="text/html", headers=HEADERS)


CONSOLE_ROUTES: list[HTTPRouteHandler] = [*map(_page_route, PAGES), get_static, get_icon, get_theme, act]
