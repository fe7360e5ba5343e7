"""The routes of snapshots: `/journals/{topic}/{id}/snapshots`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, delete, get, put
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter

from everlog.core.values import MAX_SEQ_NR, Version
from everlog.errors import JournalNotFound
from everlog.journal.snapshots import Criteria
from everlog.server.answers import json_answer
from everlog.server.errors import also
from everlog.server.journal_requests import AfterQuery, IdPart, TopicPart, journal_of, json_of
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.wire.events import NewSnapshot, SnapshotBody, metadata_of, payload_of, snapshot_body

Number = Annotated[int, PathParameter(ge=1, le=MAX_SEQ_NR, description="The seqNr that the state stands for")]
Lowest = Annotated[int, QueryParameter(ge=1, le=MAX_SEQ_NR, description="Not below this seqNr")]
Highest = Annotated[int, QueryParameter(ge=1, le=MAX_SEQ_NR, description="Not above this seqNr")]
Since = Annotated[int, QueryParameter(ge=0, le=MAX_SEQ_NR, description="Not before this time (Unix milliseconds)")]
Until = Annotated[int, QueryParameter(ge=0, le=MAX_SEQ_NR, description="Not after this time (Unix milliseconds)")]


def fitting(
    min_seq_nr: Lowest = 1,
    max_seq_nr: Highest = MAX_SEQ_NR,
    min_timestamp: Since = 0,
    max_timestamp: Until = MAX_SEQ_NR,
) -> Criteria:
    """Which snapshots a request means."""
    return Criteria(min_seq_nr, max_seq_nr, min_timestamp, max_timestamp)


Wanted = NamedDependency[Criteria]
CRITERIA = {"criteria": Provide(fitting, sync_to_thread=False)}
_KEPT = {
    "seq_nr": 10,
    "time": "2026-01-31T12:00:00.000+00:00",
    "payload_type": "json",
    "payload": {"total": 12},
    "metadata": None,
}


class SnapshotsBody(msgspec.Struct, frozen=True):
    """The kept states of a journal, oldest first."""

    topic: str
    id: str
    snapshots: list[SnapshotBody]


class DroppedBody(msgspec.Struct, frozen=True):
    """How many were dropped."""

    dropped: int


@get(
    "/journals/{topic:str}/{journal_id:str}/snapshots",
    tags=["journals"],
    responses=also(),
    dependencies=CRITERIA,
    opt=shown(answers={200: SchemaShape(SnapshotsBody, {"topic": "orders", "id": "o-1", "snapshots": [_KEPT]})}),
)
async def get_snapshots(
    request: AnyRequest, topic: TopicPart, journal_id: IdPart, criteria: Wanted, after: AfterQuery = None
) -> Response[bytes]:
    """The snapshots of a journal, oldest first; the newest one that fits is the last."""
    journal, name = journal_of(request, topic), decode(journal_id)
    found = [snapshot_body(one) for one in await journal.snapshots.list(name, criteria, after=after)]
    return json_answer(SnapshotsBody(journal.topic, name, found))


@get(
    "/journals/{topic:str}/{journal_id:str}/snapshots/{seq_nr:int}",
    tags=["journals"],
    responses=also(404),
    opt=shown(answers={200: SchemaShape(SnapshotBody, _KEPT)}),
)
async def get_snapshot(
    request: AnyRequest, topic: TopicPart, journal_id: IdPart, seq_nr: Number, after: AfterQuery = None
) -> Response[bytes]:
    """One snapshot."""
    journal, name = journal_of(request, topic), decode(journal_id)
    found = await journal.snapshots.load(name, Criteria(seq_nr, seq_nr), after=after)
    if found is None:
        raise JournalNotFound(f"there is no snapshot of {name!r} at seqNr {seq_nr}")
    return json_answer(snapshot_body(found))


@put(
    "/journals/{topic:str}/{journal_id:str}/snapshots/{seq_nr:int}",
    status_code=204,
    tags=["journals"],
    responses=also(404, 408, 409, 413),
    opt=shown(body=SchemaShape(NewSnapshot, {"payload": {"total": 12}})),
)
async def put_snapshot(request: AnyRequest, topic: TopicPart, journal_id: IdPart, seq_nr: Number) -> Response[None]:
    """Keep a state. Ten are kept; the same seqNr is overwritten, else the oldest goes."""
    journal, name = journal_of(request, topic), decode(journal_id)
    body: NewSnapshot = await json_of(request, NewSnapshot)
    payload = payload_of(body.payload, body.payload_type)
    place = seq_nr if body.life is None else Version(seq_nr, body.life)
    await journal.snapshots.save(name, seq_nr=place, payload=payload, metadata=metadata_of(body.metadata))
    return Response(None, status_code=204)


@delete(
    "/journals/{topic:str}/{journal_id:str}/snapshots",
    status_code=200,
    tags=["journals"],
    responses=also(),
    dependencies=CRITERIA,
    opt=shown(answers={200: SchemaShape(DroppedBody, {"dropped": 1})}),
)
async def delete_snapshots(
    request: AnyRequest, topic: TopicPart, journal_id: IdPart, criteria: Wanted
) -> Response[bytes]:
    """Drop all snapshots that fit."""
    journal, name = journal_of(request, topic), decode(journal_id)
    return json_answer(DroppedBody(await journal.snapshots.delete(name, criteria=criteria)))


SNAPSHOT_ROUTES = [get_snapshots, get_snapshot, put_snapshot, delete_snapshots]
