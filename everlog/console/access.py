"""Who looks at the console, and whether they may act. The server's guard has found out who it is."""

from __future__ import annotations

from typing import NamedTuple

from everlog.server.requests import AnyRequest
from everlog.server.security.guard import principal_of


class Visitor(NamedTuple):
    """Who asks. `csrf` is what the forms of a page send back; `session`: they logged in, and so can log out."""

    name: str
    may_act: bool
    csrf: str
    session: bool = False


def visitor_of(request: AnyRequest) -> Visitor:
    found = principal_of(request)
    return Visitor(found.name, found.may("admin"), found.csrf or "", found.session)
