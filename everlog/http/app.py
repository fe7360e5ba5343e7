"""The HTTP application: routes of the parts, one way to answer errors. Parts add their routes to the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

from everlog.client import Everlog
from everlog.documents.ids import next_id
from everlog.errors import EverlogError, MissingExtra
from everlog.service import Service
from everlog.version import __version__

try:
    from litestar import Litestar
    from litestar.datastructures import State
    from litestar.exceptions import HTTPException
    from litestar.openapi import OpenAPIConfig
    from litestar.openapi.plugins import JsonRenderPlugin
except ImportError as error:
    raise MissingExtra("server") from error

from everlog.console.console import console_running
from everlog.console.routes import CONSOLE_ROUTES
from everlog.http.definitions import DEFINITION_ROUTES
from everlog.http.documents import CONTENT_ROUTES
from everlog.http.errors import handle_http, handle_refusal, handle_unexpected


def make_app(log: Everlog) -> Litestar:
    """The application on an open log; whoever opened it closes it."""
    clock = log.parts.clock

    def new_error_id() -> str:
        return next_id(clock.now_ms(), UUID(clock.new_id()).int)

    @asynccontextmanager
    async def running(app: Litestar) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for service in await document_services(log):
                service.start()
                stack.push_async_callback(service.stop)
            await stack.enter_async_context(console_running(app, log))
            yield

    return Litestar(
        [*CONTENT_ROUTES, *DEFINITION_ROUTES, *CONSOLE_ROUTES],
        exception_handlers={
            EverlogError: handle_refusal,
            HTTPException: handle_http,
            Exception: handle_unexpected,
        },
        lifespan=[running],
        # The document alone: pages that show it would load their scripts from elsewhere.
        openapi_config=OpenAPIConfig(
            title="Everlog", version=__version__, path="/openapi", render_plugins=[JsonRenderPlugin()]
        ),
        # Bodies are read by the handlers, which know the limit of their part.
        request_max_body_size=None,
        state=State(
            {
                "documents": log.documents,
                "config": log.config,
                "new_error_id": new_error_id,
                "stopping": asyncio.Event(),
            }
        ),
        # Errors are answered by our handlers and logged there.
        logging_config=None,
    )


async def document_services(log: Everlog) -> list[Service]:
    """What runs beside the routes: recovery of the outbox, often for the last half hour, now and then for all."""
    parts, config = log.parts, log.config.documents
    recovery = (await log.documents.open()).recovery
    started = False

    async def hot() -> object:
        nonlocal started
        if not started:  # what the last run of this process left need not wait for its time
            found = await recovery.everything()
            started = True
            return found
        return await recovery.hot()

    return [
        Service("documents-hot", config.hot_recovery_retry, hot, clock=parts.clock, store=parts.store),
        Service("documents-stale", config.stale_recovery_retry, recovery.stale, clock=parts.clock, store=parts.store),
    ]
