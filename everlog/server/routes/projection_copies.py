"""Copies of a projection's view over HTTP: how far a rebuild or a verification is, and the commands about them.

A rebuild and a verification need the handler, which a server does not have: they are asked for here, and whoever runs
the projection does them. The command stands in the body: below a projection's address every name is one of its keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.params import PathParameter

from everlog.projections.api import Projections
from everlog.projections.copies import Copies
from everlog.server.audit import note
from everlog.server.document_answers import json_answer
from everlog.server.errors import also
from everlog.server.journal_requests import json_of, log_of
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.server.security.guard import begin_operation
from everlog.wire.projections import CopiesBody, CopyCommand, copies_body

NamePart = Annotated[str, PathParameter(description="The projection, percent-encoded")]


class ViewCommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do; `reason` goes into the operations log."""

    command: CopyCommand
    reason: str = ""


COPIES_EXAMPLE: dict[str, Any] = {
    "current": 0,
    "building": 1,
    "filled": False,
    "previous": None,
    "rebuild": {
        "state": "running",
        "asked_ms": 1769860800000,
        "owner": "0197b2c4",
        "handled": 1200,
        "total": 4800,
        "ended_ms": None,
        "error": None,
        "differences": [],
    },
    "verify": None,
}


_COMMANDS: dict[CopyCommand, Callable[[Projections, str], Awaitable[Copies]]] = {
    "rebuild": lambda projections, name: projections.request_rebuild(name),
    "verify": lambda projections, name: projections.request_verify(name),
    "cancel-verify": lambda projections, name: projections.cancel_verify(name),
    "switch": lambda projections, name: projections.switch(name),
    "switch-back": lambda projections, name: projections.switch(name, back=True),
    "abort": lambda projections, name: projections.abort(name),
}


@post(
    "/projections/{name:str}",
    status_code=200,
    tags=["projections"],
    responses=also(404, 408, 413),
    opt=shown(
        body=SchemaShape(ViewCommandBody, {"command": "rebuild", "reason": "a new column"}),
        answers={200: SchemaShape(CopiesBody, COPIES_EXAMPLE)},
        scope="admin",
        audit=False,  # what is done stands in the body
    ),
)
async def command_view(request: AnyRequest, name: NamePart) -> Response[Any]:
    """Rebuild a projection's view beside the running one, or verify it; switch to the new copy, go back, drop it.

    Whoever runs the projection does the first two, now or when it runs again: `GET` shows how far that is.
    """
    body: ViewCommandBody = await json_of(request, ViewCommandBody)
    await begin_operation(request, f"{body.command.replace('-', '_')}_projection")
    note(request, reason=body.reason)
    projections, known = log_of(request).projections, decode(name)
    await projections.check_view(known)
    return json_answer(copies_body(await _COMMANDS[body.command](projections, known)))
