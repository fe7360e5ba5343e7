"""Copies of a projection's view over HTTP: how far a rebuild or a verification is, and the commands about them.

A rebuild and a verification need the handler, which a server does not have: they are asked for here, and whoever runs
the projection does them. The command stands in the body: below a projection's address every name is one of its keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, post
from litestar.params import PathParameter

from everlog.projections.copies import Copies, CopyRequest, Difference
from everlog.projections.projections import Projections
from everlog.server.audit import note
from everlog.server.document_answers import json_answer
from everlog.server.errors import also
from everlog.server.journal_requests import json_of, log_of
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.server.security.guard import begin_operation

NamePart = Annotated[str, PathParameter(description="The projection, percent-encoded")]
CopyCommand = Literal["rebuild", "verify", "cancel-verify", "switch", "switch-back", "abort"]


class DifferenceBody(msgspec.Struct, frozen=True):
    """How a table differs from the recount: rows that it lacks, and rows that it has too many."""

    table: str
    rows: int
    missing: int
    surplus: int
    equal: bool


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever runs the projection was asked for; `handled` of `total` events, null if nobody can tell.

    `error` says why it failed, `differences` what a verification found.
    """

    state: Literal["waiting", "running", "done", "failed"]
    asked_ms: int
    owner: str | None
    handled: int
    total: int | None
    ended_ms: int | None
    error: str | None
    differences: list[DifferenceBody]


class CopiesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The copy that is read, the one that is being built (`filled`: it can be switched to), and the one before."""

    current: int
    building: int | None
    filled: bool
    previous: int | None
    rebuild: RequestBody | None
    verify: RequestBody | None


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


def copies_body(copies: Copies) -> CopiesBody:
    return msgspec.convert(copies.shown(), CopiesBody)


def copies_of(body: CopiesBody) -> Copies:
    """What a client knows of the copies: what was told."""
    return Copies(
        body.current,
        body.building,
        body.filled,
        body.previous,
        rebuild=_request_of(body.rebuild),
        verify=_request_of(body.verify),
    )


def _request_of(body: RequestBody | None) -> CopyRequest | None:
    if body is None:
        return None
    found = tuple(Difference(one.table, one.rows, one.missing, one.surplus) for one in body.differences)
    return CopyRequest(
        body.asked_ms,
        body.owner,
        handled=body.handled,
        total=body.total,
        ended_ms=body.ended_ms,
        error=body.error,
        differences=found,
    )


async def _switch_back(projections: Projections, name: str) -> Copies:
    return await projections.switch(name, back=True)


_COMMANDS: dict[CopyCommand, Callable[[Projections, str], Awaitable[Copies]]] = {
    "rebuild": Projections.request_rebuild,
    "verify": Projections.request_verify,
    "cancel-verify": Projections.cancel_verify,
    "switch": Projections.switch,
    "switch-back": _switch_back,
    "abort": Projections.abort,
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
