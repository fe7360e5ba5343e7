"""What a request may carry: the parameters and conditional headers that its route declares, and nothing else.

A parameter that a route would not look at changes what the caller meant: `DELETE orders~?filter=…` means less than
`DELETE orders~`. So before anything is done, a request with a parameter that its route does not declare, or with one
twice, is 400. What a route declares is read from what its OpenAPI description is made of, so that both say the same.

Conditional headers as in RFC 9110, section 13: a write with an If-Match that its route cannot evaluate must not be
carried out (412); an If-None-Match with tags holds where nothing has a tag; those about dates and ranges are ignored
where there is no date of modification, as section 13.1 says.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.routes import HTTPRoute

from everlog.errors import InvalidDocument, PreconditionFailed

MAX_FIELDS = 100
_SAFE = ("GET", "HEAD", "OPTIONS")


class DeclaredParameters(NamedTuple):
    """What a route takes: names of query parameters, those that may come more than once, and of headers in small."""

    names: frozenset[str]
    repeatable: frozenset[str]
    headers: frozenset[str]


def declared_parameters(app: Litestar) -> dict[int, DeclaredParameters]:
    """What every route declares, by the identity of its handler: of documents in their descriptions, else in the
    signatures of the handlers.
    """
    found = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler, model in route.route_handler_map.values():
                described = getattr(handler.operation_class, "declared", ())
                names = {one.name for one in described if one.param_in == "query"}
                headers = {one.name.lower() for one in described if one.param_in == "header"}
                names |= {one.field_alias for one in model.expected_query_params}
                headers |= {one.field_alias.lower() for one in model.expected_header_params}
                repeatable = {one.field_alias for one in model.expected_query_params if one.is_sequence}
                found[id(handler)] = DeclaredParameters(frozenset(names), frozenset(repeatable), frozenset(headers))
    return found


def check_parameters(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Refuse what the route does not declare. It comes after the guard, which knows who asks."""
    scope = connection.scope
    if scope["method"] == "OPTIONS":  # type: ignore[typeddict-item]
        return
    declared: DeclaredParameters = connection.app.state.declared_parameters[id(scope["route_handler"])]
    query = scope["query_string"].decode("latin-1")
    if query:
        check_names(query, declared)
    if scope["method"] not in _SAFE:  # type: ignore[typeddict-item]
        _check_conditions(connection.headers, declared)


def check_names(query: str, declared: DeclaredParameters) -> None:
    """Every name is declared, and comes once."""
    seen: set[str] = set()
    for name, _ in _fields(query):
        allowed = sorted(declared.names)
        if name not in declared.names:
            listed = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            message = f"this request has no parameter {name[:50]!r}: {listed}"
            raise InvalidDocument("unknown-parameter", message, parameter=name[:50], allowed=allowed)
        if name in seen and name not in declared.repeatable:
            raise InvalidDocument("repeated-parameter", f"{name} is given twice: give it once", parameter=name)
        seen.add(name)


def _fields(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidDocument("invalid-parameter", f"the query cannot be read: {error}") from error


def _check_conditions(headers: Any, declared: DeclaredParameters) -> None:
    """A condition that the route does not evaluate, and that may not hold."""
    for name, spelled in (("if-match", "If-Match"), ("if-none-match", "If-None-Match")):
        given = headers.get(name)
        if given is None or name in declared.headers or (name == "if-none-match" and given.strip() != "*"):
            continue
        message = f"what this request changes has no entity tag, so {spelled} cannot hold: leave it out"
        raise PreconditionFailed("not_matched", message)
