"""The routes of work queues: `/queues/{name}/…`. JSON for people and other languages, and one route for our client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from litestar import MediaType, Response, Router, delete, get, post, put
from litestar.params import JSONBody, PathParameter, QueryParameter

from everlog.api import Everlog
from everlog.config.queue_options import MAX_PAYLOAD_BYTES, check_name
from everlog.errors import AccessDenied, EverlogError, InvalidInput
from everlog.queues.checks import check_operation
from everlog.queues.declaration import ColumnSchema, Declaration, convert_schemas
from everlog.queues.job import Job, NewJob, parse_key
from everlog.queues.listeners import listener_name
from everlog.queues.operations import Handle, Operation, Pause, PauseSchedule, PurgeJobs, Put, PutAnswer, RemoveSchedule
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.wire import MEDIA_TYPE, WireOutcome, decode_operations, encode_outcomes
from everlog.server.audit import note
from everlog.server.errors import QUEUE_HANDLERS, NoSuchLetter
from everlog.server.requests import MAX_WAIT_S, AnyRequest, read_body
from everlog.server.schemas import queue_examples as examples
from everlog.server.schemas.openapi import shown
from everlog.server.schemas.queues import (
    BeatBody,
    CancelBody,
    ClaimBody,
    ClaimsBody,
    CountBody,
    DeadPageBody,
    DeclareBody,
    FailBody,
    FlagsBody,
    HistoryBody,
    JobBody,
    JobDoneBody,
    JobReportBody,
    PageBody,
    PausedBody,
    PurgeBody,
    PutBody,
    PutManyBody,
    QueueBody,
    QueuesBody,
    ReceiptBody,
    ReceiptsBody,
    StatsBody,
    WokenBody,
    also_fine,
    claimed_body,
    dead_body,
    ended_body,
    flag_body,
    job_fields,
    moment,
    read_data,
    read_history_place,
    read_key,
    read_letter_place,
    read_place,
    refusals,
    report_body,
    write_history_place,
    write_letter_place,
    write_place,
)
from everlog.server.security.guard import begin_operation
from everlog.server.security.principal import principal_of

MAX_BODY_BYTES = 2 * MAX_PAYLOAD_BYTES
OPERATORS = (
    Pause,
    PauseSchedule,
    PurgeJobs,
    RemoveSchedule,
)  # what an operator does needs the scope admin, on every route
BODY_TIMEOUT_S = 30.0
Name = Annotated[str, PathParameter(description="The queue")]
EntryPath = Annotated[int, PathParameter(description="The number of the job")]
TokenPath = Annotated[int, PathParameter(description="The token of the claim")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="At most this many")]


def _log(request: AnyRequest) -> Everlog:
    found: Everlog = request.app.state.log
    return found


def _queue(request: AnyRequest, name: str) -> Queue:
    return _log(request).queue(name)


@get("/", responses=refusals(), opt=shown(answers={200: examples.NAMES}))
async def list_queues(request: AnyRequest) -> QueuesBody:
    """The names of all queues."""
    return QueuesBody(await _log(request).queues.names())


@get("/{name:str}", responses=refusals(404), opt=shown(answers={200: examples.QUEUE}))
async def get_queue(request: AnyRequest, name: Name) -> QueueBody:
    """What a queue is declared to be."""
    return QueueBody(await _queue(request, name).declaration())


@put(
    "/{name:str}",
    responses=refusals(408, 409, 413),
    opt=shown(body=examples.DECLARE, answers={200: examples.QUEUE}),
    request_max_body_size=1024 * 1024,
)
async def declare_queue(request: AnyRequest, name: Name, data: JSONBody[DeclareBody]) -> QueueBody:
    """Make a queue, or change its options. Needs the scope `admin`, unless it does no more than a first put does."""
    schemas: tuple[ColumnSchema, ...] = convert_schemas(data.schemas)
    wanted = Declaration(check_name(name), data.options, schemas, data.description)
    queues = _log(request).queues
    found = await queues.declared(name)
    if wanted != (found or Declaration(name)):
        await begin_operation(request)
    return QueueBody(await queues.declare(wanted))


@delete(
    "/{name:str}",
    status_code=200,
    responses=refusals(404, 409),
    opt=shown(answers={200: examples.COUNT}, scope="admin"),
)
async def delete_queue(
    request: AnyRequest,
    name: Name,
    running: Annotated[bool, QueryParameter(description="Also while jobs run: their workers lose them")] = False,
) -> CountBody:
    """Remove a queue with all that it holds, for good; how many jobs it had. Needs the scope `admin`."""
    count = await _queue(request, name).delete(running=running)
    note(request, deleted=count)
    return CountBody(count)


@post(
    "/{name:str}/jobs",
    status_code=201,
    responses={**also_fine(200, ReceiptBody, "Merged with what is there"), **refusals(408, 409, 413)},
    opt=shown(body=examples.PUT, answers={201: examples.CREATED, 200: examples.MERGED}),
    request_max_body_size=MAX_BODY_BYTES,
)
async def put_job(request: AnyRequest, name: Name, data: JSONBody[PutBody]) -> Response[ReceiptBody]:
    """Put a job, or merge it into the one that waits for its key. The first put makes the queue."""
    queue = _queue(request, name)
    job = _new_job(data, await _log(request).queues.declared(queue.name))
    receipt = await queue.put(**job._asdict())
    status = 201 if receipt.result == "CREATED" else 200
    return Response(ReceiptBody(receipt.result, receipt.entry), status_code=status)


@post(
    "/{name:str}/jobs/batch",
    status_code=200,
    responses=refusals(408, 409, 413),
    opt=shown(body=examples.PUT_MANY, answers={200: examples.RECEIPTS}),
    request_max_body_size=MAX_BODY_BYTES,
)
async def put_jobs(request: AnyRequest, name: Name, data: JSONBody[PutManyBody]) -> ReceiptsBody:
    """Put many jobs, with a receipt for each. All are checked first: if one is wrong, none is put."""
    queue = _queue(request, name)
    declaration = await _log(request).queues.declared(queue.name)
    receipts = await queue.put_many([_new_job(job, declaration) for job in data.jobs])
    return ReceiptsBody([ReceiptBody(one.result, one.entry) for one in receipts])


def _new_job(body: PutBody, declaration: Declaration | None) -> NewJob:
    return NewJob(
        read_key(body.key, declaration),
        read_data(body, declaration),
        body.priority,
        body.at,
        body.delay,
        body.expires_at if body.expires_in is None else body.expires_in,
        body.kind,
        body.group,
    )


@get("/{name:str}/jobs", responses=refusals(404), opt=shown(answers={200: examples.WAITING}))
async def peek_jobs(
    request: AnyRequest,
    name: Name,
    limit: Limit = 10,
    after: Annotated[str | None, QueryParameter(description="The `next` of the page before")] = None,
    key: Annotated[str | None, QueryParameter(description="Only the jobs of this key, also running ones")] = None,
) -> PageBody:
    """What waits, in the order in which it will run; nothing is claimed."""
    queue = _queue(request, name)
    if key is not None:
        found = await queue.get(parse_key(await queue.declaration(), key))
        return PageBody([JobBody(**job_fields(info)) for info in found])
    found = await queue.peek(limit, after=None if after is None else read_place(after))
    following = write_place(found[-1].row.order) if len(found) == limit else None
    return PageBody([JobBody(**job_fields(info)) for info in found], following)


@get("/{name:str}/jobs/{entry:int}", responses=refusals(404), opt=shown(answers={200: examples.JOB}))
async def get_job(request: AnyRequest, name: Name, entry: EntryPath) -> JobReportBody:
    """One job, wherever it is: waiting and why, running, dead, or ended as far as that is kept."""
    report = await _queue(request, name).job(entry)
    if report is None:
        raise NoSuchLetter(detail=f"{name} has no job {entry}: it never was, has expired, or has ended and is not kept")
    return report_body(report)


@get("/{name:str}/claims", responses=refusals(404), opt=shown(answers={200: examples.CLAIMED}))
async def list_claims(request: AnyRequest, name: Name, limit: Limit = 100) -> PageBody:
    """What is being processed; the one whose lease ends first at the head."""
    return PageBody([JobBody(**job_fields(info)) for info in await _queue(request, name).leases(limit)])


@post(
    "/{name:str}/claims",
    status_code=200,
    responses=refusals(404, 408, 413),
    opt=shown(body=examples.CLAIM, answers={200: examples.CLAIMS}),
    request_max_body_size=65_536,
)
async def claim_jobs(request: AnyRequest, name: Name, data: JSONBody[ClaimBody]) -> ClaimsBody:
    """Take the first jobs that are due; with `wait`, wait for one. Each is yours until its deadline."""
    jobs = await _claim_patiently(request, _queue(request, name), data)
    return ClaimsBody([claimed_body(job) for job in jobs])


async def _claim_patiently(request: AnyRequest, queue: Queue, wanted: ClaimBody) -> list[Job]:
    """Claims again after every wake-up, until the time is over, the client is gone, or the server stops."""
    clock, store = _log(request).parts.clock, _log(request).queues
    listener = listener_name(wanted.owner, clock.new_id())
    ends = clock.monotonic() + wanted.wait
    while True:
        jobs = await queue.claim(wanted.limit, owner=wanted.owner, lease=wanted.lease, fast_only=wanted.fast_only)
        left = ends - clock.monotonic()
        if jobs or left <= 0 or request.app.state.stopping.is_set():
            return jobs
        if await _listen(request, store.wait(queue.name, listener, left)) is None:
            return []


async def _listen(request: AnyRequest, waiting: Any) -> bool | None:
    """Whether a wake-up came; None if the caller is gone, or the server stops."""
    wait = asyncio.ensure_future(waiting)
    ends = [asyncio.ensure_future(_gone(request)), asyncio.ensure_future(request.app.state.stopping.wait())]
    try:
        await asyncio.wait([wait, *ends], return_when=asyncio.FIRST_COMPLETED)
        return bool(await wait) if wait.done() else None
    finally:
        for task in (wait, *ends):
            task.cancel()
        await asyncio.gather(wait, *ends, return_exceptions=True)


async def _gone(request: AnyRequest) -> None:
    """Returns when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@post(
    "/{name:str}/claims/{entry:int}/{token:int}/heartbeat",
    status_code=200,
    responses=refusals(404, 409),
    opt=shown(answers={200: examples.BEAT}),
)
async def beat_job(request: AnyRequest, name: Name, entry: EntryPath, token: TokenPath) -> BeatBody:
    """Keep a job for one more lease."""
    answer = await _queue(request, name).heartbeat(Handle(entry, token))
    return BeatBody(moment(answer.deadline_ms), answer.stop, answer.reason)


@post(
    "/{name:str}/claims/{entry:int}/{token:int}/done",
    status_code=204,
    responses=refusals(404, 408, 409, 413),
    opt=shown(body=examples.DONE),
    request_max_body_size=65_536,
)
async def finish_job(
    request: AnyRequest, name: Name, entry: EntryPath, token: TokenPath, data: JSONBody[JobDoneBody | None] = None
) -> None:
    """The work is finished: the job goes. A body is needed only for its result."""
    await _queue(request, name).done(Handle(entry, token), None if data is None else data.result)


@post(
    "/{name:str}/claims/{entry:int}/{token:int}/fail",
    status_code=204,
    responses=refusals(404, 408, 409, 413),
    opt=shown(body=examples.FAIL),
    request_max_body_size=65_536,
)
async def fail_job(
    request: AnyRequest, name: Name, entry: EntryPath, token: TokenPath, data: JSONBody[FailBody]
) -> None:
    """The attempt failed: again later, or a dead letter."""
    await _queue(request, name).fail(Handle(entry, token), data.reason, delay=data.delay, retry=data.retry)


@post("/{name:str}/claims/{entry:int}/{token:int}/release", status_code=204, responses=refusals(404, 409))
async def release_job(request: AnyRequest, name: Name, entry: EntryPath, token: TokenPath) -> None:
    """Give a job back untouched; that does not count as a failure."""
    await _queue(request, name).release(Handle(entry, token))


@post(
    "/{name:str}/cancel",
    status_code=200,
    responses=refusals(404, 408, 413),
    opt=shown(body=examples.CANCEL, answers={200: examples.COUNT}),
    request_max_body_size=65_536,
)
async def cancel_job(request: AnyRequest, name: Name, data: JSONBody[CancelBody]) -> CountBody:
    """Remove what waits for a key, tell what runs to stop."""
    queue = _queue(request, name)
    key = read_key(data.key, await queue.declaration())
    return CountBody(await queue.cancel(key, data.reason))


@post(
    "/{name:str}/purge",
    status_code=200,
    responses=refusals(404, 408, 413),
    opt=shown(body=examples.PURGE, answers={200: examples.COUNT}, scope="admin"),
    request_max_body_size=65_536,
)
async def purge_queue(request: AnyRequest, name: Name, data: JSONBody[PurgeBody | None] = None) -> CountBody:
    """Remove all jobs that wait, for good; what runs goes on, unless that is wanted, too. Needs the scope `admin`."""
    count = await _queue(request, name).purge(running=data is not None and data.running)
    note(request, purged=count)
    return CountBody(count)


@post(
    "/{name:str}/pause",
    status_code=200,
    responses=refusals(404),
    opt=shown(answers={200: examples.PAUSED}, scope="admin"),
)
async def pause_queue(request: AnyRequest, name: Name) -> PausedBody:
    """Give out no more jobs. Needs the scope `admin`."""
    return PausedBody(True, await _queue(request, name).pause())


@post(
    "/{name:str}/resume",
    status_code=200,
    responses=refusals(404),
    opt=shown(answers={200: examples.RESUMED}, scope="admin"),
)
async def resume_queue(request: AnyRequest, name: Name) -> PausedBody:
    """Give out jobs again. Needs the scope `admin`."""
    return PausedBody(False, await _queue(request, name).resume())


@get("/{name:str}/dead", responses=refusals(404), opt=shown(answers={200: examples.DEAD}))
async def list_dead(
    request: AnyRequest,
    name: Name,
    limit: Limit = 100,
    before: Annotated[str | None, QueryParameter(description="The `next` of the page before")] = None,
) -> DeadPageBody:
    """Dead letters, those that died last first."""
    found = await _queue(request, name).dead(limit, before=None if before is None else read_letter_place(before))
    more = write_letter_place(found[-1].place) if len(found) == limit else None
    return DeadPageBody([dead_body(letter) for letter in found], more)


@get("/{name:str}/history", responses=refusals(404), opt=shown(answers={200: examples.HISTORY}))
async def list_history(
    request: AnyRequest,
    name: Name,
    limit: Limit = 100,
    before: Annotated[str | None, QueryParameter(description="The `next` of the page before")] = None,
    key: Annotated[str | None, QueryParameter(description="Only the jobs of this key")] = None,
) -> HistoryBody:
    """Jobs that have ended, the last one first; of a queue with the option `keep_done`."""
    queue = _queue(request, name)
    parsed = None if key is None else parse_key(await queue.declaration(), key)
    place = None if before is None else read_history_place(before)
    found = await queue.history(limit, before=place, key=parsed)
    more = write_history_place(found[-1].place) if len(found) == limit else None
    return HistoryBody([ended_body(job) for job in found], more)


@post(
    "/{name:str}/dead/{entry:int}/revive",
    status_code=200,
    responses=refusals(404, 409),
    opt=shown(answers={200: examples.CREATED}),
)
async def revive_job(request: AnyRequest, name: Name, entry: EntryPath) -> ReceiptBody:
    """Put a dead letter back into the queue."""
    receipt = await _queue(request, name).revive(entry)
    if receipt is None:
        raise NoSuchLetter(detail=f"{name} has no dead letter {entry}")
    return ReceiptBody(receipt.result, receipt.entry)


@get("/{name:str}/flags", responses=refusals(404), opt=shown(answers={200: examples.FLAGS}))
async def list_flags(request: AnyRequest, name: Name) -> FlagsBody:
    """What an operator should look at."""
    return FlagsBody([flag_body(flag) for flag in await _queue(request, name).flags()])


@delete("/{name:str}/flags/{reason:str}", status_code=204, responses=refusals(404))
async def ack_flag(
    request: AnyRequest, name: Name, reason: Annotated[str, PathParameter(description="The flag's reason")]
) -> None:
    """Close a flag."""
    if not await _queue(request, name).ack_flag(reason):
        raise NoSuchLetter(detail=f"{name} has no open flag {reason!r}")


@get("/{name:str}/stats", responses=refusals(404), opt=shown(answers={200: examples.STATS}))
async def get_stats(request: AnyRequest, name: Name) -> StatsBody:
    """How many jobs are ready, delayed, running, dead."""
    found = await _queue(request, name).stats()
    oldest = None if found.oldest_due_ms is None else moment(found.oldest_due_ms)
    return StatsBody(found.ready, found.delayed, found.running, found.dead, found.paused, oldest)


@post("/{name:str}/wait", status_code=200, responses=refusals(404), opt=shown(answers={200: examples.WOKEN}))
async def wait_for_work(
    request: AnyRequest,
    name: Name,
    seconds: Annotated[float, QueryParameter(ge=0, le=MAX_WAIT_S, description="How long")] = 30.0,
    listener: Annotated[str, QueryParameter(max_length=1000, description="Who waits: the owner of its claims")] = "",
) -> WokenBody:
    """Wait until there may be work."""
    log = _log(request)
    await log.queue(name).declaration()
    listening = listener_name(listener, log.parts.clock.new_id())
    return WokenBody(bool(await _listen(request, log.queues.wait(name, listening, seconds))))


@post(
    "/{name:str}/operations",
    status_code=200,
    media_type=MediaType.MESSAGEPACK,
    responses=refusals(404, 408, 413),
    opt=shown(body=examples.OPERATIONS, answers={200: examples.OUTCOMES}),
    description="For the Python client: operations as MessagePack, answered in their order.",
)
async def run_operations(
    request: AnyRequest,
    name: Name,
    together: Annotated[bool, QueryParameter(description="Only puts: check all of them before the first one")] = False,
) -> Response[bytes]:
    body = await read_body(request, limit=MAX_BODY_BYTES, seconds=BODY_TIMEOUT_S)
    operations, store = decode_operations(body), _log(request).queues
    declaration = await _queue(request, name).declaration()
    if together:
        answers = await _put_together(store, declaration, operations)
        return Response(encode_outcomes(answers), media_type=MEDIA_TYPE)
    may_operate = principal_of(request).may("admin")
    acts = [one for one in operations if isinstance(one, OPERATORS)]
    if acts and may_operate:
        await begin_operation(request)
        note(request, **_facts(acts[-1]))

    async def run(operation: Operation) -> WireOutcome:
        try:
            if isinstance(operation, OPERATORS) and not may_operate:
                raise AccessDenied(f"{type(operation).__name__} on {name} needs the scope 'admin'")
            check_operation(operation, declaration)
            return await store.execute(name, operation)
        except EverlogError as error:
            return error

    outcomes = await asyncio.gather(*(run(operation) for operation in operations))
    return Response(encode_outcomes(outcomes), media_type=MEDIA_TYPE)


async def _put_together(
    store: QueueStore, declaration: Declaration, operations: Sequence[Operation]
) -> Sequence[PutAnswer]:
    puts = [one for one in operations if isinstance(one, Put)]
    if len(puts) != len(operations):
        raise InvalidInput("only puts are done together")
    for one in puts:
        check_operation(one, declaration)
    return await store.put_all(declaration.name, [one.packet for one in puts])


def _facts(act: Operation) -> dict[str, Any]:
    """What the operations log says of an operator's act."""
    if isinstance(act, RemoveSchedule):
        return {"schedule": act.name, "removed": True}
    if isinstance(act, PurgeJobs):
        return {"purge": "all" if act.running else "waiting"}
    if isinstance(act, PauseSchedule):
        return {"schedule": act.name, "paused": act.paused}
    return {"paused": getattr(act, "paused", None)}


QUEUE_ROUTES = [
    Router(
        "/queues",
        route_handlers=[
            list_queues,
            get_queue,
            declare_queue,
            delete_queue,
            put_job,
            put_jobs,
            peek_jobs,
            get_job,
            list_claims,
            claim_jobs,
            beat_job,
            finish_job,
            fail_job,
            release_job,
            cancel_job,
            purge_queue,
            pause_queue,
            resume_queue,
            list_dead,
            list_history,
            revive_job,
            list_flags,
            ack_flag,
            get_stats,
            wait_for_work,
            run_operations,
        ],
        exception_handlers=QUEUE_HANDLERS,
        tags=["queues"],
    )
]
