"""Who asks, and what they may: whole scopes, and document paths.

The invariant: a principal whose scopes name paths reaches documents at these paths and nothing else. What is asked
for is a path as documents have it, decoded once by the same code that the handler uses; a template is asked for as a
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from litestar import Request
from litestar.connection import ASGIConnection

from everlog.config.scopes import ALL, GrantedScopes, scopes_of
from everlog.core.path_pattern import PathPattern

Verb = Literal["read", "write"]
# How a route says in its `opt` which documents a request is about.
PathFinder = Callable[[Request[Any, Any, Any]], Iterable[str]]


class Principal(NamedTuple):
    """Who asks. `csrf` is what the forms and scripts of a page must send back; None where nothing must be.

    >>> Principal("ann", frozenset({"read"})).may("write")
    False
    """

    name: str
    scopes: frozenset[str]
    token_id: str | None = None
    csrf: str | None = None
    session: bool = False
    reads: tuple[PathPattern, ...] = ()
    writes: tuple[PathPattern, ...] = ()

    @classmethod
    def of(cls, name: str, scopes: tuple[str, ...], token_id: str, csrf: str | None = None) -> Principal:
        """Who has a token with these scopes; with `csrf`, in a session that began with it."""
        found: GrantedScopes = scopes_of(scopes)
        return cls(name, found.whole, token_id, csrf, csrf is not None, found.reads, found.writes)

    def may(self, scope: str) -> bool:
        """Whether a scope is allowed as a whole."""
        return scope == "public" or scope in self.scopes

    @property
    def limited(self) -> bool:
        """Whether it reads documents at some paths alone."""
        return bool(self.reads) and "read" not in self.scopes

    def patterns(self, verb: str) -> tuple[PathPattern, ...]:
        """Where documents may be read, or written, without the whole scope."""
        return {"read": self.reads, "write": self.writes}.get(verb, ())

    def may_reach(self, verb: Verb, path: str) -> bool:
        """Whether it may read or write the document, the collection or the element at a path."""
        return verb in self.scopes or any(one.matches(path) for one in self.patterns(verb))

    def may_cover(self, verb: Verb, template: str) -> bool:
        """Whether it may read or write all that a template of paths can match."""
        return verb in self.scopes or any(one.covers(template) for one in self.patterns(verb))

    def shown_scopes(self) -> list[str]:
        """All of them, as they are written."""
        paths = [f"{verb}:{one}" for verb in ("read", "write") for one in self.patterns(verb)]
        return sorted(self.scopes) + paths


ANONYMOUS = Principal("", frozenset())
# Servers and workers that call each other: `[server] cluster_token`.
CLUSTER = Principal("cluster", ALL - {"admin"})


def principal_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Principal:
    """Who sent this request; ANONYMOUS on a public route without a token. Set by the guard before any handler runs."""
    found: Principal = connection.scope["state"].get("principal", ANONYMOUS)
    return found
