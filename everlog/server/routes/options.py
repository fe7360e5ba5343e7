"""OPTIONS of every route: which methods its address takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from litestar import Response, Router, route
from litestar.handlers import HTTPRouteHandler

from everlog.documents.paths import parse_path
from everlog.errors import DocumentNotFound
from everlog.server.documents import content_path, documents_of
from everlog.server.methods import CONTENT, READ_ONLY, allow
from everlog.server.requests import AnyRequest


def option_routes(routes: Sequence[Any]) -> list[HTTPRouteHandler]:
    """One for each path that these have. They stand before them: the framework makes its own where there is none."""
    methods: dict[str, set[str]] = defaultdict(set)
    for one in routes:
        if isinstance(one, Router):
            for inner in one.routes:
                methods[inner.path] |= inner.methods
        else:
            for path in one.paths:
                methods[path] |= one.http_methods
    return [_option_route(path, frozenset(known)) for path, known in methods.items()]


def _option_route(path: str, methods: frozenset[str]) -> HTTPRouteHandler:
    async def answer_options(request: AnyRequest) -> Response[None]:
        known = READ_ONLY if path.startswith(CONTENT) and await _is_view(request) else methods
        return Response(None, status_code=204, headers={"Allow": allow(known, request)})

    made: Callable[[Any], HTTPRouteHandler] = route(
        path, http_method=["OPTIONS"], status_code=204, include_in_schema=False
    )
    return made(answer_options)


async def _is_view(request: AnyRequest) -> bool:
    """Views and their elements are written by what they show."""
    place = parse_path(content_path(request))
    if place.kind == "document":
        return False
    try:
        await documents_of(request).view(place.uri)
    except DocumentNotFound:
        return False
    return True
