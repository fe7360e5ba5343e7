"""Logging in: the token once, then a cookie. For browsers, which cannot send a bearer header with every request."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.exceptions import NotAuthorizedException

from everlog.errors import InvalidDocument
from everlog.server.answers import json_answer
from everlog.server.errors import also
from everlog.server.requests import AnyRequest, local_path, parameters, read_body
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.server.security.guard import CHALLENGE, FORM, MAX_FORM_BYTES, Security, caller, form_of
from everlog.server.security.principal import Principal, principal_of

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Everlog: log in</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; margin: .25rem 0 1rem }}
</style>
<main><h1>Everlog</h1>{problem}
<form method="post" action="/login">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{next}">
<button>Log in</button>
</form>
<p>Tokens are made with <code>everlog token new</code>.</p></main></html>"""


class LoginBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token, for scripts."""

    token: str


class SessionBody(msgspec.Struct, frozen=True):
    """Who asks. `csrf_token` goes into the header `X-CSRF-Token` of every change, or into a form's `csrf_token`."""

    name: str
    scopes: list[str]
    csrf_token: str | None


def _security(request: AnyRequest) -> Security:
    found: Security = request.app.state.security
    return found


def login_page(next_: str, problem: str = "", status: int = 200) -> Response[str]:
    shown = f'<p role="alert"><strong>{escape(problem)}</strong></p>' if problem else ""
    page = _PAGE.format(problem=shown, next=escape(local_path(next_), quote=True))
    return Response(page, status_code=status, media_type="text/html; charset=utf-8")


@get("/login", opt={"scope": "public"}, include_in_schema=False)
async def get_login(request: AnyRequest) -> Response[str]:
    """The page that asks for a token."""
    return login_page(parameters(request).get("next", "/"))


_SESSION = SchemaShape(SessionBody, {"name": "ann", "scopes": ["read", "write"], "csrf_token": "…"})
_ELSEWHERE = SchemaShape(None, "", "text/plain")


@post(
    "/login",
    status_code=200,
    tags=["operations"],
    responses=also(303, 401, 403, 408, 413),
    opt=shown(
        body=SchemaShape(LoginBody, {"token": "evl_…"}), answers={200: _SESSION, 303: _ELSEWHERE}, scope="public"
    ),
)
async def post_login(request: AnyRequest) -> Response[Any]:
    """Exchange a token for a session's cookie: `{"token": "evl_…"}`, or a form."""
    security = _security(request)
    form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM
    fields = await form_of(request) if form else {}
    text = fields.get("token", "") if form else (await _login_body(request)).token
    token = security.tokens.find(text.strip())
    if token is None and form:
        return login_page(fields.get("next", "/"), "This token is not known here.", 401)
    if token is None:
        raise NotAuthorizedException("this token is not known here", headers=CHALLENGE)
    value, session = security.sessions.begin(token.id)
    cookie = _cookie(security, value, security.sessions.seconds)
    if form:
        place = {"Location": local_path(fields.get("next", "/"))}
        return Response(b"", status_code=303, headers=place, cookies=[cookie], media_type="text/plain")
    body = SessionBody(token.name or token.id, Principal.of("", token.scopes, token.id).shown_scopes(), session.csrf)
    answer = json_answer(body)
    answer.set_cookie(cookie)
    return answer


def _cookie(security: Security, value: str, seconds: int) -> Cookie:
    return Cookie(
        key=security.cookie,
        value=value,
        path="/",
        max_age=seconds,
        httponly=True,
        secure=security.secure,
        samesite="strict",
    )


async def _login_body(request: AnyRequest) -> LoginBody:
    seconds = request.app.state.config.server.body_timeout_s
    data = await read_body(request, limit=MAX_FORM_BYTES, seconds=seconds)
    try:
        return msgspec.json.decode(data, type=LoginBody)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidDocument("invalid-body", 'log in with {"token": "evl_…"}') from error


@post(
    "/logout",
    tags=["operations"],
    opt=shown(answers={303: _ELSEWHERE}, scope="public"),
    status_code=303,
    responses=also(403),
)
async def post_logout(request: AnyRequest) -> Response[bytes]:
    """End the session."""
    security = _security(request)
    cookie = security.cookie_of(request)
    if cookie is not None:
        security.sessions.end(cookie)
    gone = _cookie(security, "", 0)
    return Response(b"", status_code=303, headers={"Location": "/login"}, cookies=[gone], media_type="text/plain")


@get("/session", tags=["operations"], responses=also(), opt=shown(answers={200: _SESSION}, paths=caller))
async def get_session(request: AnyRequest) -> Response[bytes]:
    """Who asks, what they may do, and the token that their changes must carry."""
    principal = principal_of(request)
    return json_answer(SessionBody(principal.name, principal.shown_scopes(), principal.csrf))


LOGIN_ROUTES = [get_login, post_login, post_logout, get_session]
