"""Projections: how far each is, what fails, and its dead letters."""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.console.console import ConsolePage, Context, Model
from everlog.console.sampler import series
from everlog.errors import UnknownProjection
from everlog.projections.api import ProjectionStatus
from everlog.projections.copies import CopyRequest, copy_name, is_copy
from everlog.projections.dead_letters import ShownDeadLetter
from everlog.projections.offsets import show as show_offset
from everlog.projections.source import EnvelopeFacts

MAX_LETTERS = 100


async def build_projections(context: Context) -> Model:
    found = await context.log.projections.list()
    name, key = context.text("name"), context.text("key")
    model: Model = {
        "projections": [_row(one, context) for one in found],
        "selected": None,
        "letters": [],
        "copies": None,
        "series": series(context.sampler.samples, "handled"),
    }
    if name:
        chosen = [one for one in found if one.name == name and (not key or one.key == key)]
        if not chosen:
            raise UnknownProjection(name, key or None)
        model["selected"] = _row(chosen[0], context)
        letters = await context.log.projections.dead_letters(name, chosen[0].key, limit=MAX_LETTERS)
        model["copies"] = await _copies(context, chosen[0].name, model["projections"])
        model["letters"] = [_letter(one) for one in letters]
    return model


async def _copies(context: Context, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Which copies of its view there are, how far the one is that is being built, and what was asked for."""
    base = name.rpartition("~")[0] if is_copy(name) else name
    found = await context.log.projections.copies(base)
    built = [] if found.building is None else [row for row in rows if row["name"] == copy_name(base, found.building)]
    current = [row for row in rows if row["name"] == copy_name(base, found.current)]
    return {
        "name": base,
        "current": found.current,
        "building": found.building,
        "filled": found.filled,
        "previous": found.previous,
        "version": found.versions.get(found.current) or None,
        "waiting": sum(row["lag"] or 0 for row in built),
        "progress": min((row["progress"] for row in built if row["progress"] is not None), default=None),
        "running": any(row["owner"] is not None and not row["silent"] for row in current),
        "rebuild": _request(found.rebuild),
        "verify": _request(found.verify),
    }


def _request(one: CopyRequest | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {**one.shown(), "progress": None if not one.total else min(99, 100 * one.handled // one.total)}


def _row(one: ProjectionStatus, context: Context) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.structs.asdict(one)
    shown = show_offset(one.offset)
    row["offset"] = ", ".join(f"{part} {at}" for part, at in shown.items()) if isinstance(shown, dict) else shown
    row["rate"] = context.sampler.handled_rate(one.name, one.key)
    row["silent"] = one.state == "silent"
    row["lag"] = None if one.lag is None else one.lag.events
    row["lag_seconds"] = None if one.lag is None else one.lag.seconds
    row["level"] = _level(one)
    # What stands elsewhere on the page is not said twice.
    row["remedy"] = None if row["silent"] else one.remedy
    row["pipeline_lag"] = None if one.pipeline_lag is None else one.pipeline_lag.events
    row["pipeline_seconds"] = None if one.pipeline_lag is None else one.pipeline_lag.seconds
    row["progress"] = _progress(one)
    return row


def _level(one: ProjectionStatus) -> str:
    if one.state in ("failed", "silent", "waiting") or one.failing is not None:
        return "bad"
    return "warn" if one.dead_letters or one.remedy or (one.paused and one.lag is not None and one.lag.events) else ""


def _progress(one: ProjectionStatus) -> int | None:
    """How much of what it knows of is handled, in percent; of an empty source all of it."""
    if one.lag is None:
        return None
    known = one.handled + one.skipped + one.lag.events
    return 100 if not one.lag.events else min(99, 100 * (known - one.lag.events) // known)


def _letter(one: ShownDeadLetter) -> dict[str, Any]:
    event = one.event or EnvelopeFacts()
    return {
        "offset": one.offset,
        "manifest": one.manifest,
        "cause": one.cause,
        "attempts": one.attempts,
        "created_ms": one.created_ms,
        "requested": one.requested,
        "replayable": one.replayable,
        **msgspec.structs.asdict(event),
    }


PROJECTIONS = ConsolePage("projections", "Projections", "projections.html", build_projections)
