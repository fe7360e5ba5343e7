"""The routes of projections: how far they are, and commands for them. Commands need the scope admin.

A rebuild and a verification of a view need the handler, which a server does not have: they are asked for here, and the
process that runs the projection does them. The command stands in the body: below a projection's address every name is
one of its keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import PathParameter, QueryParameter

from everlog.errors import InvalidOffset
from everlog.projections.api import Projections, ProjectionStatus
from everlog.projections.copies import Copies, is_copy
from everlog.projections.offsets import Offset, Single, parse, parse_place, show
from everlog.projections.port import ANY_OFFSET, AnyOffset
from everlog.server.answers import json_answer
from everlog.server.audit import note
from everlog.server.errors import also
from everlog.server.journal_requests import json_of, log_of
from everlog.server.requests import MAX_WAIT_S, AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.server.security.guard import begin_operation
from everlog.wire.projections import (
    CopiesBody,
    CopyCommand,
    InstanceBody,
    LettersBody,
    ProjectionBody,
    ProjectionsBody,
    copies_body,
    lag_body,
    letter_body,
)

CommandKind = Literal["text", "int", "long", "sequence", "uuid", "map"]
_MANIFESTS = {"text": "STR", "int": "INT", "long": "LNG", "sequence": "SEQ", "uuid": "TBU"}

NamePart = Annotated[str, PathParameter(description="The projection, percent-encoded")]
KeyPart = Annotated[str, PathParameter(description="The key of one instance, percent-encoded")]


class CommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`wait`: seconds until the owner must have obeyed; `reason` goes into the operations log."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | None = None
    reason: str = ""


class SkipBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which envelope to leave out: the one that fails now, or the one at this offset."""

    offset: str | None = None
    reason: str = ""


class OffsetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An offset: a number, a text, a UUID as text, or a map of parts. `expected`: only if it is this one now.

    It must be of a type that the projection's source has: of a tag `uuid`, of a topic's records `map`.
    """

    offset: Any
    type: CommandKind = "long"
    expected: Any = msgspec.field(default_factory=lambda: msgspec.UNSET)
    reason: str = ""


class StoredOffsetBody(msgspec.Struct, frozen=True):
    """The stored offset."""

    name: str
    key: str
    offset: Any


class DoneBody(msgspec.Struct, frozen=True):
    """A command that was noted; the instance follows it."""

    name: str
    key: str
    what: str


class ViewCommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do; `reason` goes into the operations log."""

    command: CopyCommand
    reason: str = ""


_INSTANCE = {
    "name": "carts",
    "key": "carts-0",
    "state": "running",
    "paused": False,
    "offset": 42,
    "updated_ms": 1769860800000,
    "owner": "host/1",
    "epoch": 1,
    "handled": 42,
    "skipped": 0,
    "restarts": 0,
    "dead_letters": 0,
    "failing": None,
    "attempts": 0,
    "error": None,
    "lag": {"events": 0, "seconds": 0.0},
    "reported_ms": 1769860800000,
    "version": "1",
    "pipeline_lag": None,
    "remedy": None,
}
_DONE = SchemaShape(DoneBody, {"name": "carts", "key": "carts-0", "what": "paused"})
_OFFSET = SchemaShape(StoredOffsetBody, {"name": "carts", "key": "carts-0", "offset": 42})
_LETTER = {
    "key": "carts-0",
    "offset": "17",
    "manifest": "LNG",
    "cause": "ValueError: no such cart",
    "attempts": 3,
    "created_ms": 1769860800000,
    "replayable": True,
    "requested": False,
    "event": {
        "topic": "carts",
        "id": "c-1",
        "seq_nr": 3,
        "tags": ["cart"],
        "payload_type": "json",
        "payload": {"item": "book"},
    },
}
_COPIES: dict[str, Any] = {
    "current": 0,
    "building": 1,
    "filled": False,
    "previous": None,
    "version": "1",
    "waiting": {"2": 1769860800000},
    "rebuild": {
        "state": "running",
        "asked_ms": 1769860800000,
        "owner": "0197b2c4",
        "handled": 1200,
        "total": 4800,
        "ended_ms": None,
        "error": None,
        "differences": [],
        "silent_s": None,
    },
    "verify": None,
}
_ALL = SchemaShape(ProjectionsBody, {"projections": [_INSTANCE]})
_ONE = SchemaShape(ProjectionBody, {"projections": [_INSTANCE], "copies": _COPIES})
_FIELDS = frozenset(InstanceBody.__struct_fields__)
_COMMANDS: dict[CopyCommand, Callable[[Projections, str], Awaitable[Copies]]] = {
    "rebuild": lambda projections, name: projections.request_rebuild(name),
    "verify": lambda projections, name: projections.request_verify(name),
    "cancel-verify": lambda projections, name: projections.cancel_verify(name),
    "switch": lambda projections, name: projections.switch(name),
    "switch-back": lambda projections, name: projections.switch(name, back=True),
    "abort": lambda projections, name: projections.abort(name),
}


def instance_body(status: ProjectionStatus) -> InstanceBody:
    fields = {name: getattr(status, name) for name in ProjectionStatus.__struct_fields__ if name in _FIELDS}
    lags = {"lag": lag_body(status.lag), "pipeline_lag": lag_body(status.pipeline_lag)}
    return InstanceBody(**{**fields, "offset": show(status.offset), **lags})


def _projections(request: AnyRequest) -> Projections:
    return log_of(request).projections


@get("/projections", tags=["projections"], responses=also(), opt=shown(answers={200: _ALL}))
async def get_projections(request: AnyRequest) -> Response[bytes]:
    """All instances that ever ran here."""
    return json_answer(ProjectionsBody([instance_body(one) for one in await _projections(request).list()]))


@get("/projections/{name:str}", tags=["projections"], responses=also(404), opt=shown(answers={200: _ONE}))
async def get_projection(
    request: AnyRequest,
    name: NamePart,
    after: Annotated[str | None, QueryParameter(description="Answer when all instances have this position")] = None,
    seconds: Annotated[float, QueryParameter(ge=0, le=MAX_WAIT_S, description="Wait at most this long")] = 30.0,
) -> Response[bytes]:
    """The instances of one projection; the copies of its view, and the progress of what was asked for."""
    projections, known = _projections(request), decode(name)
    found = await projections.list(known)
    if not found:
        await projections.get(known)  # says that there is none
    if after is not None:
        await projections.wait(known, after, seconds=seconds)
        found = await projections.list(known)
    copies = None if is_copy(known) else copies_body(await projections.copies(known))
    return json_answer(ProjectionBody([instance_body(one) for one in found], copies))


@get(
    "/projections/{name:str}/{key:str}",
    tags=["projections"],
    responses=also(404),
    opt=shown(answers={200: SchemaShape(InstanceBody, _INSTANCE)}),
)
async def get_instance(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """One instance."""
    return json_answer(instance_body(await _projections(request).get(decode(name), decode(key))))


def _command(body: type[Any], example: dict[str, Any]) -> dict[str, Any]:
    """How a command for an instance is described: operators only, and its body may be left out."""
    shape = SchemaShape(body, example, required=False)
    return {
        "status_code": 200,
        "tags": ["projections"],
        "responses": also(404, 408, 413),
        "opt": shown(body=shape, answers={200: _DONE}, scope="admin"),
    }


def _done(name: str, key: str, what: str) -> Response[bytes]:
    return json_answer(DoneBody(decode(name), decode(key), what))


@post("/projections/{name:str}/{key:str}/pause", **_command(CommandBody, {"reason": "maintenance"}))
async def pause_projection(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Handle nothing until it is resumed; also after a restart."""
    body: CommandBody = await json_of(request, CommandBody, empty=True)
    note(request, reason=body.reason)
    await _projections(request).pause(decode(name), decode(key), wait_s=body.wait)
    return _done(name, key, "paused")


@post("/projections/{name:str}/{key:str}/resume", **_command(CommandBody, {"wait": 5.0}))
async def resume_projection(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Go on after a pause, or after it gave up."""
    body: CommandBody = await json_of(request, CommandBody, empty=True)
    note(request, reason=body.reason)
    await _projections(request).resume(decode(name), decode(key), wait_s=body.wait)
    return _done(name, key, "resumed")


@post("/projections/{name:str}/{key:str}/skip", **_command(SkipBody, {"reason": "a test order"}))
async def skip_envelope(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Leave out the envelope that is failing now. It becomes a dead letter."""
    body: SkipBody = await json_of(request, SkipBody, empty=True)
    skipped = await _projections(request).skip(decode(name), decode(key), offset=body.offset)
    note(request, reason=body.reason, offset=skipped)
    return _done(name, key, f"skips {skipped}")


@get(
    "/projections/{name:str}/{key:str}/offset",
    tags=["projections"],
    responses=also(404),
    opt=shown(answers={200: _OFFSET}),
)
async def get_offset(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """The stored offset."""
    found = await _projections(request).offset(decode(name), decode(key))
    return json_answer(StoredOffsetBody(decode(name), decode(key), show(found)))


def read_offset(value: Any, kind: CommandKind) -> Offset:
    """An offset from JSON, of this type."""
    if kind == "map":
        if not isinstance(value, dict) or not value:
            raise InvalidOffset("a map of offsets is an object of numbers or UUIDs, by part")
        return {part: _place(one) for part, one in value.items()}
    return _single(value, kind)


def _place(value: Any) -> Single:
    """A number, or as text a place inside a record, "17/2", or a UUID."""
    return parse_place(value) if isinstance(value, str) else _single(value, "long")


def _single(value: Any, kind: CommandKind) -> Single:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidOffset(f"an offset of the type {kind} is a number or a text")
    return parse(str(value), _MANIFESTS[kind])


@put(
    "/projections/{name:str}/{key:str}/offset",
    status_code=200,
    tags=["projections"],
    responses=also(404, 408, 412, 413),
    opt=shown(
        body=SchemaShape(OffsetBody, {"offset": {"journal-orders-0": 17}, "type": "map"}),
        answers={200: _OFFSET},
        scope="admin",
    ),
)
async def put_offset(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Go on after this offset; with `expected` only if it is that one now (null: none), else 412."""
    body: OffsetBody = await json_of(request, OffsetBody)
    expected: Offset | AnyOffset | None = ANY_OFFSET
    if body.expected is not msgspec.UNSET:
        expected = None if body.expected is None else read_offset(body.expected, body.type)
    offset = read_offset(body.offset, body.type)
    await _projections(request).set(decode(name), decode(key), offset, expected=expected)
    note(request, reason=body.reason, offset=show(offset))
    return json_answer(StoredOffsetBody(decode(name), decode(key), show(offset)))


@delete(
    "/projections/{name:str}/{key:str}/offset",
    status_code=200,
    tags=["projections"],
    responses=also(404),
    opt=shown(answers={200: _OFFSET}, scope="admin"),
)
async def clear_offset(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Forget the offset: begin at the beginning of the source."""
    await _projections(request).clear(decode(name), decode(key))
    return json_answer(StoredOffsetBody(decode(name), decode(key), None))


@get(
    "/projections/{name:str}/{key:str}/dead-letters",
    tags=["projections"],
    responses=also(404),
    opt=shown(answers={200: SchemaShape(LettersBody, {"dead_letters": [_LETTER]})}),
)
async def get_dead_letters(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Envelopes that were given up, with the cause and the event."""
    found = await _projections(request).dead_letters(decode(name), decode(key))
    return json_answer(LettersBody([letter_body(one) for one in found]))


@post("/projections/{name:str}/{key:str}/dead-letters/replay", **_command(SkipBody, {"offset": "17"}))
async def replay_dead_letters(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Let the projection handle its dead letters again, all or the one at an offset."""
    body: SkipBody = await json_of(request, SkipBody, empty=True)
    count = await _projections(request).replay(decode(name), decode(key), offset=body.offset)
    note(request, reason=body.reason, count=count)
    return _done(name, key, f"will handle {count} dead letters again")


@post("/projections/{name:str}/{key:str}/dead-letters/forget", **_command(SkipBody, {"offset": "17"}))
async def forget_dead_letters(request: AnyRequest, name: NamePart, key: KeyPart) -> Response[bytes]:
    """Drop dead letters for good, all or the one at an offset."""
    body: SkipBody = await json_of(request, SkipBody, empty=True)
    count = await _projections(request).forget(decode(name), decode(key), offset=body.offset)
    note(request, reason=body.reason, count=count)
    return _done(name, key, f"{count} dead letters dropped")


# Copies of a view


@post(
    "/projections/{name:str}",
    status_code=200,
    tags=["projections"],
    responses=also(404, 408, 413),
    opt=shown(
        body=SchemaShape(ViewCommandBody, {"command": "rebuild", "reason": "a new column"}),
        answers={200: SchemaShape(CopiesBody, _COPIES)},
        scope="admin",
        audit=False,  # what is done stands in the body
    ),
)
async def command_view(request: AnyRequest, name: NamePart) -> Response[Any]:
    """Rebuild a projection's view next to the running one, or verify it; switch to the new copy, go back, drop it.

    The owner of the projection does the first two, now or when it runs again: `GET` shows how far that is.
    """
    body: ViewCommandBody = await json_of(request, ViewCommandBody)
    await begin_operation(request, f"{body.command.replace('-', '_')}_projection")
    note(request, reason=body.reason)
    projections, known = log_of(request).projections, decode(name)
    await projections.check_view(known)
    return json_answer(copies_body(await _COMMANDS[body.command](projections, known)))


PROJECTION_ROUTES = [
    get_projections,
    get_projection,
    command_view,
    get_instance,
    pause_projection,
    resume_projection,
    skip_envelope,
    get_offset,
    put_offset,
    clear_offset,
    get_dead_letters,
    replay_dead_letters,
    forget_dead_letters,
]
