"""Projections as JSON, both ways: their instances, and the copies of their views."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from everlog.projections.copies import Copies, CopyRequest, Difference, RequestState
from everlog.projections.dead_letters import ShownDeadLetter
from everlog.projections.source import EnvelopeFacts, Lag

CopyCommand = Literal["rebuild", "verify", "cancel-verify", "switch", "switch-back", "abort"]


class DifferenceBody(msgspec.Struct, frozen=True):
    """How a table differs from the recount: rows that it lacks, and rows that it has too many."""

    table: str
    rows: int
    missing: int
    surplus: int
    equal: bool


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of the projection was asked for; `handled` of `total` events, null if the total is unknown.

    `error` says why it failed, `differences` what a verification found. `silent_s`: for how long the process that does
    it has not reported, if that is longer than a lease; another one goes on where it was.
    """

    state: RequestState
    asked_ms: int
    owner: str | None
    handled: int
    total: int | None
    ended_ms: int | None
    error: str | None
    differences: list[DifferenceBody]
    silent_s: float | None = None


class CopiesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The copy that is read, the one that is being built (`filled`: it can be switched to), and the one before.

    `version`: of the code that fills the copy that is read. `waiting`: other versions that run, and wait for a copy of
    their own; when they last said so.
    """

    current: int
    building: int | None
    filled: bool
    previous: int | None
    version: str | None
    waiting: dict[str, int]
    rebuild: RequestBody | None
    verify: RequestBody | None


class LagBody(msgspec.Struct, frozen=True):
    """How far it is behind: events that wait, and since when the oldest does."""

    events: int
    seconds: float


class InstanceBody(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a projection. `lag` is null if its source cannot tell.

    `pipeline_lag`: of events by tag, how far these views are behind the log; `remedy`: what to do, if something is.
    """

    name: str
    key: str
    state: str
    paused: bool
    offset: Any
    updated_ms: int | None
    owner: str | None
    epoch: int
    handled: int
    skipped: int
    restarts: int
    dead_letters: int
    failing: str | None
    attempts: int
    error: str | None
    lag: LagBody | None
    reported_ms: int | None
    version: str | None
    pipeline_lag: LagBody | None
    remedy: str | None


class EnvelopeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a dead letter; a binary payload as base64. What its source does not know is null."""

    topic: str | None
    id: str | None
    seq_nr: int | None
    tags: list[str]
    payload_type: str | None
    payload: Any


class LetterBody(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope that was given up. `event` is null if it cannot be read back."""

    key: str
    offset: str
    manifest: str
    cause: str
    attempts: int
    created_ms: int
    replayable: bool
    requested: bool
    event: EnvelopeBody | None


class LettersBody(msgspec.Struct, frozen=True):
    """Dead letters, oldest first."""

    dead_letters: list[LetterBody]


class ProjectionsBody(msgspec.Struct, frozen=True):
    """Instances of projections."""

    projections: list[InstanceBody]


class ProjectionBody(ProjectionsBody, frozen=True):
    """The instances of one projection, and the copies of its view; null for a copy that was asked for by its name."""

    copies: CopiesBody | None


def lag_body(lag: Lag | None) -> LagBody | None:
    return None if lag is None else LagBody(lag.events, lag.seconds)


def letter_body(letter: ShownDeadLetter) -> LetterBody:
    facts = {name: getattr(letter, name) for name in LetterBody.__struct_fields__ if name != "event"}
    event = letter.event
    body = None if event is None else EnvelopeBody(**{**msgspec.structs.asdict(event), "tags": list(event.tags)})
    return LetterBody(**facts, event=body)


def letter_of(name: str, body: LetterBody) -> ShownDeadLetter:
    """A dead letter as a client knows it: without the bytes that it was written down as."""
    facts = {field: getattr(body, field) for field in LetterBody.__struct_fields__ if field != "event"}
    event = body.event
    shown = None if event is None else EnvelopeFacts(**{**msgspec.structs.asdict(event), "tags": tuple(event.tags)})
    return ShownDeadLetter(name=name, payload=None, **facts, event=shown)


def copies_body(copies: Copies) -> CopiesBody:
    return msgspec.convert(copies.shown(), CopiesBody)


def copies_of(body: CopiesBody) -> Copies:
    """What a client knows of the copies: what was told."""
    return Copies(
        body.current,
        body.building,
        body.filled,
        body.previous,
        versions={} if body.version is None else {body.current: body.version},
        waiting=body.waiting,
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
        silent_s=body.silent_s,
    )
