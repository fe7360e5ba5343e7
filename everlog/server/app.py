"""The HTTP application: routes of the parts, one way to answer errors, one guard. Parts add their routes below."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

from everlog.api import Everlog
from everlog.documents.documents import LocalDocuments
from everlog.documents.ids import next_id
from everlog.errors import EverlogError, MissingExtra
from everlog.queues.factory import has_queues, make_upkeep
from everlog.queues.scheduler import Scheduler
from everlog.runtime.service import Service
from everlog.runtime.supervisor import LoopSupervisor

try:
    from litestar import Litestar, Router
    from litestar.datastructures import State
    from litestar.exceptions import HTTPException
    from litestar.routes import HTTPRoute
    from litestar.types import ControllerRouterHandler, Receive, Scope, Send
except ImportError as error:
    raise MissingExtra("server") from error

from everlog.server.audit import Audit
from everlog.server.errors import handle_http, handle_refusal, handle_unexpected
from everlog.server.fanout import Fanout
from everlog.server.large_turns import LargeTurns
from everlog.server.parameter_guard import check_parameters, declared_parameters
from everlog.server.refusals import Refusals
from everlog.server.request_watch import HttpCounters, RequestWatch
from everlog.server.requests import AnyRequest, HeldRequest, in_time
from everlog.server.routes.batches import BATCH_ROUTES
from everlog.server.routes.bulk import BULK, BULK_ROUTES
from everlog.server.routes.change_stream import CHANGE_STREAM_ROUTES
from everlog.server.routes.collections import COLLECTION_ROUTES
from everlog.server.routes.definitions import DEFINITION_ROUTES
from everlog.server.routes.documents import CONTENT_ROUTES
from everlog.server.routes.journals import JOURNAL_ROUTES
from everlog.server.routes.nodes import NODE_ROUTES
from everlog.server.routes.operations import OPERATION_ROUTES
from everlog.server.routes.options import option_routes
from everlog.server.routes.projections import PROJECTION_ROUTES
from everlog.server.routes.queues import QUEUE_ROUTES
from everlog.server.routes.schedules import SCHEDULE_ROUTES
from everlog.server.routes.schemas import SCHEMA_ROUTES
from everlog.server.routes.snapshots import SNAPSHOT_ROUTES
from everlog.server.routes.tags import TAG_ROUTES
from everlog.server.schemas.openapi import openapi_config
from everlog.server.security.guard import Security, guard
from everlog.server.security.login import LOGIN_ROUTES

logger = logging.getLogger("everlog.queues")
http_logger = logging.getLogger("everlog.http")

# How often a server looks for new schemas, and for checks that another one has left.
SCHEMAS_INTERVAL_S = 5.0

# Every part's routes. What a route needs is in its `opt`, see security/guard.py; nothing else says who may do what.
# They take the parameters that they declare, and no others: see parameter_guard.py.
ROUTES: list[ControllerRouterHandler] = [
    *CONTENT_ROUTES,
    *BATCH_ROUTES,
    *COLLECTION_ROUTES,
    *BULK_ROUTES,
    *CHANGE_STREAM_ROUTES,
    *DEFINITION_ROUTES,
    *SCHEMA_ROUTES,
    *NODE_ROUTES,
    *JOURNAL_ROUTES,
    *SNAPSHOT_ROUTES,
    *TAG_ROUTES,
    *PROJECTION_ROUTES,
    *QUEUE_ROUTES,
    *SCHEDULE_ROUTES,
    *OPERATION_ROUTES,
]


class AppPart(NamedTuple):
    """What is handed in from above, such as the console: its routes, and what runs as long as the server does."""

    routes: Sequence[ControllerRouterHandler]
    running: Callable[[Litestar, Everlog], AbstractAsyncContextManager[object]]


class Application(Litestar):
    """Routes by the path as it was sent: an encoded slash is not a separator, and `/%74ags` is not `/tags`."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        await self._watched(scope, receive, send)

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes | None = scope.get("raw_path")
        if raw is not None:
            scope["path"] = raw.partition(b"?")[0].decode("latin-1")
        scope.setdefault("state", {})
        timed = in_time(scope, receive, self.state.body_seconds, streamed=scope["path"] == BULK)
        watch = RequestWatch(scope, send, *self.state.watching)  # type: ignore[arg-type]
        asked: Any = scope
        run = self._without_body if asked["method"] == "HEAD" else super().__call__
        try:
            await run(scope, timed, watch.send)
        finally:
            watch.end()

    async def _without_body(self, scope: Any, receive: Any, send: Any) -> None:
        """HEAD is GET, of every route, up to where the body begins: then what makes it is stopped."""
        begun = asyncio.Event()

        async def send_head(message: Any) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                if not any(name.lower() == b"content-length" for name, _ in message["headers"]):
                    begun.set()  # of a stream nothing need ever come
            else:
                begun.set()

        asked: Any = {
            **scope,
            "method": "GET",
        }  # what it learns about the route and the caller is in the scope's own state
        answering = asyncio.create_task(super().__call__(asked, receive, send_head))
        body = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({answering, body}, return_when=asyncio.FIRST_COMPLETED)
            scope["route_handler"] = asked.get("route_handler")
            if answering.done():
                await answering
        finally:
            for task in (answering, body):
                task.cancel()
            await asyncio.gather(answering, body, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})


def make_app(
    log: Everlog,
    *,
    security: Security | None = None,
    parts: Sequence[AppPart] = (),
    routes: Sequence[ControllerRouterHandler] = (),
    metrics: Sequence[Callable[[], str]] = (),
) -> Application:
    """The application on an open log; the caller closes the log.

    `parts`: what stands on the server, such as the console. `routes`: more of them, under the same guard.
    `metrics`: more lines for Prometheus, such as those of `everlog.projections.metrics.Metrics` where projections run
    in this process.
    """
    clock, store = log.parts.clock, log.parts.store

    def new_error_id() -> str:
        return next_id(clock.now_ms(), UUID(clock.new_id()).int)

    audit, counters = Audit(log), HttpCounters()
    refusals = Refusals(audit, clock)

    @asynccontextmanager
    async def running(app: Litestar) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            queues = make_upkeep(log.config, lambda: log.queues, clock=clock, store=store)
            for service in [*await document_services(log), queues]:
                service.start()
                stack.push_async_callback(service.stop)
            await stack.enter_async_context(firing_schedules(log))
            await stack.enter_async_context(noting_refusals(log, refusals))
            for part in parts:
                await stack.enter_async_context(part.running(app, log))
            yield

    own = Router("/", route_handlers=[*option_routes(ROUTES), *ROUTES], opt={"declares": True})
    app = Application(
        [own, *LOGIN_ROUTES, *(route for part in parts for route in part.routes), *routes],
        before_request=admit,
        request_class=HeldRequest,
        exception_handlers={
            EverlogError: handle_refusal,
            HTTPException: handle_http,
            Exception: handle_unexpected,
        },
        lifespan=[running],
        openapi_config=openapi_config(),
        # Bodies are read by the handlers, which know the limit of their part.
        request_max_body_size=None,
        state=State(
            {
                "log": log,
                "documents": log.documents,
                "config": log.config,
                "security": security or Security.of(log.config, clock),
                "audit": audit,
                "http_counters": counters,
                "watching": (counters, audit, refusals),
                "metrics": tuple(metrics),
                "new_error_id": new_error_id,
                "stopping": asyncio.Event(),
                "body_seconds": max(log.config.server.body_timeout_s, log.config.documents.request_timeout_s),
                "fanout": Fanout(),
                "large_turns": LargeTurns(),
            }
        ),
        # Errors are answered by our handlers and logged there.
        logging_config=None,
    )
    app.state.declared_parameters = declared_parameters(app)
    check_admission(app)
    return app


async def admit(request: AnyRequest) -> None:
    """Before every handler: who asks, whether they may, and whether the route takes what they say.

    Not one of the framework's guards: it copies the handler for each of these, which costs more than they do.
    """
    handler = request.scope["route_handler"]
    await guard(request, handler)
    if "declares" in handler.opt:
        check_parameters(request)


def check_admission(app: Litestar) -> None:
    """No route gets past `admit`: the framework calls one such function per route, the one that is closest to it."""
    for route in app.routes:
        handlers = [one for one, _ in route.route_handler_map.values()] if isinstance(route, HTTPRoute) else [None]
        for handler in handlers:
            if handler is None or handler.resolve_before_request() is not admit or handler.cache:
                raise RuntimeError(f"the route {route.path} would be open to all callers")


@asynccontextmanager
async def firing_schedules(log: Everlog) -> AsyncIterator[None]:
    """Put what the schedules of queues say, also where all workers are clients in other languages."""

    async def names() -> Sequence[str]:
        return await log.queues.in_use() if has_queues(log.config) else ()

    loops = LoopSupervisor(clock=log.parts.clock, logger=logger)
    log.show_loops(loops)
    Scheduler(lambda: log.queues, names, loops, takes_over=False).start()
    try:
        yield
    finally:
        await loops.stop()


@asynccontextmanager
async def noting_refusals(log: Everlog, refusals: Refusals) -> AsyncIterator[None]:
    """Write what was refused into the operations log; at the end also what waits for its time."""
    loops = LoopSupervisor(clock=log.parts.clock, logger=http_logger)
    log.show_loops(loops)
    loops.start("refusals", refusals.run)
    try:
        yield
    finally:
        await loops.stop()
        await refusals.write(everything=True)


async def document_services(log: Everlog) -> list[Service]:
    """What runs next to the routes: recovery of the outbox, often of the last half hour; expiry; checks of schemas."""
    parts, config = log.parts, log.config.documents
    if isinstance(log.documents, LocalDocuments):
        log.documents.serve()
    documents = await log.documents.open()
    recovery, schemas = documents.recovery, documents.schemas
    started = False

    async def hot() -> object:
        nonlocal started
        if not started:  # what the last run of this process left need not wait for its time
            found = await recovery.everything()
            started = True
            return found
        return await recovery.hot()

    return [
        Service("documents-hot", config.hot_recovery_interval_s, hot, clock=parts.clock, store=parts.store),
        Service(
            "documents-stale", config.stale_recovery_interval_s, recovery.stale, clock=parts.clock, store=parts.store
        ),
        Service(
            "documents-expiry",
            config.expiry_interval_s,
            documents.expirer.run_once,
            clock=parts.clock,
            store=parts.store,
        ),
        Service("documents-schemas", SCHEMAS_INTERVAL_S, schemas.look_after, clock=parts.clock, store=parts.store),
    ]
