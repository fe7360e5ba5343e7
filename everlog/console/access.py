"""Who looks at the console, and whether they may act.

The server's guard leaves a principal with the request: its name, its scopes, and the secret that forms send back.
Where no guard runs, whoever reaches the server is "local" and may act if the server was started as writable.
"""

from __future__ import annotations

import hmac
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from litestar.exceptions import ClientException, PermissionDeniedException

from everlog.http.requests import AnyRequest, read_body

FORM = "application/x-www-form-urlencoded"
CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"
MAX_FORM_BYTES = 64 * 1024
FORM_SECONDS = 15.0


class Visitor(NamedTuple):
    """Who asks. `session`: they logged in, and so can log out."""

    name: str
    may_act: bool
    csrf: str
    session: bool = False


def visitor_of(request: AnyRequest) -> Visitor:
    console: Any = request.app.state.console
    found: Any = request.scope["state"].get("principal")
    if found is None:
        return Visitor("local", console.writable, console.csrf)
    return Visitor(found.name, found.may("admin"), found.csrf or console.csrf, found.session)


async def form_of(request: AnyRequest) -> dict[str, str]:
    """The fields of a form. The guard may have read them already: a body can be read only once."""
    found: dict[str, str] | None = request.scope["state"].get("form")
    if found is not None:
        return found
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise ClientException("actions are sent as a form")
    data = await read_body(request, limit=MAX_FORM_BYTES, seconds=FORM_SECONDS)
    try:
        return dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=100))
    except (UnicodeDecodeError, ValueError) as error:
        raise ClientException("this form cannot be read") from error


def check_action(request: AnyRequest, visitor: Visitor, form: dict[str, str]) -> None:
    """An action comes from a page of ours, and from somebody who may act. A bearer token is proof of both."""
    if not visitor.may_act:
        raise PermissionDeniedException(
            "this console is read-only: start the server with --writable, or log in with a token of scope admin"
        )
    headers = request.headers
    if headers.get("authorization") is not None:
        return  # no browser sends this by itself
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
    if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PermissionDeniedException("this request comes from a page of another site")
    given = form.get(CSRF_FIELD, headers.get(CSRF_HEADER, ""))
    if not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        raise PermissionDeniedException("this form is not of this session: load the page again")
