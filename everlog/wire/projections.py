"""Projections as JSON, both ways: their instances, and the copies of their views."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from everlog.projections.copies import Copies, CopyRequest, Difference

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


class LagBody(msgspec.Struct, frozen=True):
    """How far it is behind: events that wait, and since when the oldest does."""

    events: int
    seconds: float


class InstanceBody(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a projection. `lag` is null if its source cannot tell."""

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


class ProjectionsBody(msgspec.Struct, frozen=True):
    """Instances of projections."""

    projections: list[InstanceBody]


class ProjectionBody(ProjectionsBody, frozen=True):
    """The instances of one projection, and the copies of its view; null for a copy that was asked for by its name."""

    copies: CopiesBody | None


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
