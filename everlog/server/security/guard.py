"""Who asks, and whether they may: one guard for all routes.

A route says what it needs by `opt={"scope": "read" | "write" | "admin" | "public"}`; without that, GET and HEAD need
`read`, all else `write`. What needs `admin`, and what a session changes, goes into the operations log; a route that
notes its own operations there says `opt={"audit": False}`, one that is noted whoever asks `opt={"audit": True}`. One
that takes the forms of pages says `opt={"csrf": True}`: then the page's secret is asked for even without a log-in.
Handlers ask `principal_of(request)`; they never look at tokens or cookies themselves.

A token whose scopes name document paths (`write:/shop/**`) reaches only routes that say in `opt={"paths": …}` how the
paths of a request are found: a function of the request, called here, before the handler. All others are closed to it.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from litestar.connection import ASGIConnection
from litestar.exceptions import ClientException, NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.types import HTTPScope

from everlog.config import Config
from everlog.config.scopes import ALL
from everlog.runtime.clock import Clock
from everlog.server.audit import Audit
from everlog.server.requests import AnyRequest, read_body
from everlog.server.security.principal import (
    ANONYMOUS,
    CLUSTER,
    PathFinder,
    Principal,
    Verb,
    principal_of,
)
from everlog.server.security.sessions import Sessions
from everlog.server.security.tokens import MARK, Tokens, tokens_path

SAFE = ("GET", "HEAD", "OPTIONS")
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf_token"
FORM = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 64 * 1024
MAX_SHOWN_PATH = 2000
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="everlog"'}
_FORBIDDEN_PARAMETERS = frozenset({"token", "access_token", "bearer", "authorization", "api_key", "apikey"})


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach an address, or mean it.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def needed_scope(handler: BaseRouteHandler, method: str) -> str:
    """What a route asks for."""
    return str(handler.opt.get("scope") or ("read" if method in SAFE else "write"))


class Security:
    """Tokens, sessions, and what holds without any: a server that only this machine can reach lets its users work.

    They may read and write, and with `writable` also do what the console's actions do.
    """

    def __init__(
        self,
        tokens: Tokens,
        sessions: Sessions,
        *,
        writable: bool,
        local: bool = False,
        secure: bool = False,
        cluster_token: str | None = None,
    ) -> None:
        self.tokens = tokens
        self.sessions = sessions
        self.local = local
        self.secure = secure
        self._cluster = None if cluster_token is None else cluster_token.encode()
        self._local_user = Principal("local", ALL if writable else ALL - {"admin"}, csrf=secrets.token_urlsafe(32))

    @classmethod
    def of(cls, config: Config, clock: Clock, *, local: bool = False, writable: bool = False) -> Security:
        server = config.server
        return cls(
            Tokens(server.tokens, tokens_path(config)),
            Sessions(clock, server.session_hours),
            writable=server.writable or writable,
            local=local,
            secure=server.cert_file is not None,
            cluster_token=server.cluster_token,
        )

    @property
    def cookie(self) -> str:
        """The cookie's name; with TLS one that browsers take only from this host and only encrypted."""
        return "__Host-everlog_session" if self.secure else "everlog_session"

    def identify(self, connection: ASGIConnection[Any, Any, Any, Any], *, needed: bool) -> Principal | None:
        """Who sent this, if they say so. A token that is not known is an error, never a fall-back.

        `needed`: what `tokens.needed` said, which looks at a file, and need not for one request twice.
        """
        header = connection.headers.get("authorization")
        if header is not None:
            return self._bearer(header)
        if not needed:
            return self._local_user
        cookie = self.cookie_of(connection)
        session = None if cookie is None else self.sessions.find(cookie)
        token = None if session is None else self.tokens.get(session.token_id)
        if session is None or token is None:
            return None
        return Principal.of(token.name or token.id, token.scopes, token.id, session.csrf)

    def cookie_of(self, connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
        try:
            found = SimpleCookie(connection.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return None
        return None if found is None else found.value

    def _bearer(self, header: str) -> Principal:
        kind, _, text = header.partition(" ")
        if self._cluster is not None and hmac.compare_digest(text.strip().encode(), self._cluster):
            return CLUSTER
        token = self.tokens.find(text.strip()) if kind.lower() == "bearer" else None
        if token is None:
            raise NotAuthorizedException(
                "this token is not known here: 'everlog token list' shows those that are", headers=CHALLENGE
            )
        return Principal.of(token.name or token.id, token.scopes, token.id)


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let a request in, or say why not. It runs before every handler."""
    scope: HTTPScope = connection.scope  # type: ignore[assignment]
    security: Security = connection.app.state.security
    _refuse_tokens_in_the_address(scope)
    needed = security.tokens.needed
    if security.local and not needed:
        _refuse_foreign_hosts(connection)
    principal = security.identify(connection, needed=needed)
    wanted = needed_scope(handler, scope["method"])
    scope["state"]["principal"] = principal or ANONYMOUS
    if principal is None and wanted != "public":
        raise NotAuthorizedException("this needs a token: Authorization: Bearer evl_…", headers=CHALLENGE)
    if principal is not None and not principal.may(wanted):
        _check_paths(connection, handler, principal, wanted)
    if scope["method"] not in SAFE and connection.headers.get("authorization") is None:
        _refuse_other_sites(connection)
        if principal is not None and wanted != "public" and (principal.session or handler.opt.get("csrf")):
            await _refuse_forged_requests(connection, principal)
    if _is_operation(handler, scope["method"], wanted, principal):
        assert principal is not None
        await _note_operation(connection, handler, principal)


def _check_paths(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler, principal: Principal, wanted: str
) -> None:
    """Let a token through whose scopes name documents, if the route says which ones a request is about: these all.

    Nothing is looked up for it, so an answer is the same whether there is a document or not.
    """
    find: PathFinder | None = handler.opt.get("paths")
    if find is None or not principal.patterns(wanted):
        raise _denied(wanted, principal, connection)
    for path in find(connection):  # type: ignore[arg-type]
        check_path(connection, wanted, path)  # type: ignore[arg-type]


def check_path(connection: ASGIConnection[Any, Any, Any, Any], verb: Verb, path: str) -> None:
    """Refuse a request that is about a document which its sender may not read, or write.

    For handlers of which only the body says what they are about; the guard does it for all others.
    """
    principal = principal_of(connection)
    if not principal.may_reach(verb, path):
        raise PermissionDeniedException(f"{principal.name} may not {verb} {path}: {_known(principal, verb)}")


def check_template(connection: ASGIConnection[Any, Any, Any, Any], verb: Verb, template: str) -> None:
    """Refuse a request that is about all that matches a template, unless its sender may read, or write, all of it."""
    principal = principal_of(connection)
    if not principal.may_cover(verb, template):
        raise PermissionDeniedException(
            f"{principal.name} may not {verb} all that matches {template}: {_known(principal, verb)}"
        )


def _known(principal: Principal, verb: str) -> str:
    found = [one for one in principal.shown_scopes() if one.startswith(verb)]
    return f"its scopes are {', '.join(found)}" if found else f"this needs the scope {verb!r}"


def caller(_: AnyRequest) -> list[str]:
    """For a route about the caller alone: `opt={"paths": caller}`."""
    return []


def in_body(_: AnyRequest) -> list[str]:
    """For a route of which only the body says what it is about: its handler calls `check_path` or `check_template`."""
    return []


def _is_operation(handler: BaseRouteHandler, method: str, wanted: str, principal: Principal | None) -> bool:
    if method in SAFE or principal is None or wanted == "public" or handler.opt.get("audit") is False:
        return False
    return wanted == "admin" or principal.session or bool(handler.opt.get("audit"))


async def begin_operation(request: AnyRequest, action: str | None = None) -> None:
    """For a handler whose bodies decide what is an operator's: this one is. It needs `admin`, and is noted."""
    principal = principal_of(request)
    if not principal.may("admin"):
        raise _denied("admin", principal, request)
    if "operation" not in request.scope["state"]:  # what a session changes is noted already
        await _note_operation(request, request.scope["route_handler"], principal, action)


def _denied(
    wanted: str, principal: Principal, connection: ASGIConnection[Any, Any, Any, Any]
) -> PermissionDeniedException:
    security: Security = connection.app.state.security
    hint = "" if security.tokens.needed else ": start the server with --writable, or use a token"
    return PermissionDeniedException(f"this needs the scope {wanted!r}, which {principal.name} has not{hint}")


async def _note_operation(
    connection: ASGIConnection[Any, Any, Any, Any],
    handler: BaseRouteHandler,
    principal: Principal,
    action: str | None = None,
) -> None:
    """Before anything is done; the answer ends it (request_watch.py)."""
    scope: HTTPScope = connection.scope  # type: ignore[assignment]
    target = {"method": scope["method"], "path": scope["path"][:MAX_SHOWN_PATH]}
    if connection.client is not None:
        target["from"] = connection.client.host
    named = action or str(handler.opt.get("action", handler.handler_name))
    audit: Audit = connection.app.state.audit
    scope["state"]["operation"] = await audit.begin(named, target, by=principal.name)


def _refuse_tokens_in_the_address(scope: HTTPScope) -> None:
    """Addresses end up in logs, histories and referrers. The answer does not repeat it."""
    query = scope["query_string"]
    if not query:
        return
    names = {name.lower() for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)}
    if names & _FORBIDDEN_PARAMETERS or f"{MARK}_".encode() in query:
        raise ClientException(
            "a token does not belong into an address: send it as a header, and replace this one, as others may know it"
        )


def _parts(url: str) -> tuple[str, str | None]:
    """Host and port, and the host alone; nothing for what is no address."""
    try:
        found = urlsplit(url)
        return found.netloc, found.hostname
    except ValueError:
        return "", None


@lru_cache(maxsize=64)
def _names_this_machine(host: str) -> bool:
    return is_loopback(_parts("//" + host)[1])


def _refuse_foreign_hosts(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Without tokens, a page elsewhere could have its own name lead here and then read what it likes."""
    if not _names_this_machine(connection.headers.get("host", "")):
        raise PermissionDeniedException("without tokens this server answers to localhost only: see docs/security.md")


def _refuse_other_sites(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """What a browser sends by itself, with a cookie or to a local server, must come from a page of ours."""
    headers = connection.headers
    origin = headers.get("origin")
    foreign = origin is not None and (_parts(origin)[0] or "none") != headers.get("host", "")
    if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PermissionDeniedException("this request comes from a page of another site")


async def _refuse_forged_requests(connection: ASGIConnection[Any, Any, Any, Any], principal: Principal) -> None:
    """Only a page that was served to this principal knows the secret."""
    assert principal.csrf is not None
    headers = connection.headers
    given = headers.get(CSRF_HEADER)
    if given is None and headers.get("content-type", "").partition(";")[0].strip().lower() == FORM:
        given = (await form_of(connection)).get(CSRF_FIELD)  # type: ignore[arg-type]
    if given is None or not hmac.compare_digest(given.encode(), principal.csrf.encode()):
        raise PermissionDeniedException(
            f"this needs the header {CSRF_HEADER}, or the form field {CSRF_FIELD}, of its session: load the page again"
        )


async def form_of(request: AnyRequest) -> dict[str, str]:
    """The fields of a form; a second call gives the same ones."""
    found: dict[str, str] | None = request.scope["state"].get("form")
    if found is None:
        seconds = request.app.state.config.server.body_timeout_s
        data = await read_body(request, limit=MAX_FORM_BYTES, seconds=seconds)
        try:
            found = dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=100))
        except (UnicodeDecodeError, ValueError) as error:
            raise ClientException("this form cannot be read") from error
        request.scope["state"]["form"] = found
        request._body = data  # a body can be read only once: a handler that asks again gets this one
    return found
