"""The console of one server: what its pages share, and how long it lives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from litestar import Litestar

from everlog.api import Everlog
from everlog.console.operations import Operations
from everlog.console.renderer import url
from everlog.console.sampler import Sampler
from everlog.errors import EverlogError, InvalidInput
from everlog.server.audit import Audit
from everlog.server.security.principal import PathFinder, Principal

MAX_STREAMS = 100
MAX_STATE_CHARS = 8192


class PageNotFound(EverlogError):
    """What a page is to show is not there."""


class Console:
    """What the handlers need."""

    def __init__(self, log: Everlog, audit: Audit) -> None:
        self.log = log
        self.sampler = Sampler(log)
        self.operations = Operations(log, audit)
        self.streams = 0


class Context(NamedTuple):
    """What a page is made of: the open log, and the state that the address holds."""

    log: Everlog
    sampler: Sampler
    operations: Operations
    given: Mapping[str, str]
    now_ms: int
    visitor: Principal

    def text(self, name: str) -> str:
        """A parameter, "" if it is absent."""
        found = self.given.get(name, "")
        if len(found) > MAX_STATE_CHARS:
            raise InvalidInput(f"{name} is too long")
        return found

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A parameter that is a number."""
        text = self.text(name).strip()
        if not text:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise InvalidInput(f"{name} is a whole number, not {text[:50]!r}")
        return int(text)


Model = dict[str, Any]


class ConsolePage(NamedTuple):
    """A page: its model is what the template shows and what its JSON twin answers with."""

    name: str
    title: str
    template: str
    build: Callable[[Context], Awaitable[Model]]
    live: bool = True
    section: str = ""
    paths: PathFinder | None = None
    """Which documents a request for this page is about; a page that does not say is closed to tokens with paths."""

    @property
    def place(self) -> str:
        """Which page of the navigation it belongs to."""
        return self.section or self.name


@asynccontextmanager
async def console_running(app: Litestar, log: Everlog) -> AsyncIterator[Console]:
    """The console at work: its sampler looks at everything now and then."""
    console = app.state.console = Console(log, app.state.audit)
    app.state.documents_home = url("documents")
    console.sampler.start()
    try:
        yield console
    finally:
        await console.sampler.stop()
