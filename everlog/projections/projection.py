"""Declaring projections: by decorator, or as an object."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from everlog.core.values import shown
from everlog.errors import InvalidProjection
from everlog.projections.copies import copy_name, is_copy, tables_of
from everlog.projections.handlers import HandlerShape
from everlog.projections.lifecycle import Restart
from everlog.projections.observers import Observer
from everlog.projections.projection_id import check_part
from everlog.projections.provider_source import as_source
from everlog.projections.recovery import Recovery
from everlog.projections.settings import check_choice, check_duration, check_tables, check_version
from everlog.projections.strategies import AtLeastOnce, AtMostOnce, ExactlyOnce, Flow, OnSpark, Strategy

T = TypeVar("T")


class Projection:
    """A name, a source, a handler, and how they work together. It does nothing until a runner runs it.

    `handler`: a function, or a class whose instances handle (one per start of the stream). `factory=True`: it is a
    function that makes handlers. `timeout_s`: how long a call may take; None takes the configured time. `view`: what a
    handler with a second argument gets instead of the store's own view. `tables`: those of the store that it fills,
    for `rebuild` and `verify`. `version`: a copy that was built by one version is not written to by another.
    """

    def __init__(
        self,
        name: str,
        *,
        source: Any,
        handler: Any,
        strategy: Strategy | None = None,
        recovery: Recovery | None = None,
        restart: Restart | None = None,
        observers: Sequence[Observer] = (),
        timeout_s: float | None = None,
        factory: bool = False,
        view: Any = None,
        tables: Sequence[str] = (),
        version: str = "",
    ) -> None:
        self.name = check_part("name", name)
        self.source = as_source(source)
        self.strategy: Strategy = AtLeastOnce() if strategy is None else strategy
        self.recovery = _instance("recovery", Recovery() if recovery is None else recovery, Recovery)
        self.restart = _instance("restart", Restart() if restart is None else restart, Restart)
        if not isinstance(observers, list | tuple):
            raise InvalidProjection(f"observers are a list of Observers, not {shown(observers)}")
        self.observers = tuple(_instance("one of the observers", one, Observer) for one in observers)
        self.timeout_s = None if timeout_s is None else check_duration("timeout_s", timeout_s)
        self.view = view
        self.tables = check_tables(tables)
        self.version = check_version(version)
        self.copies: Mapping[str, str] = {}
        self.handler = handler
        self.shape = HandlerShape(
            handler, factory=check_choice("factory", factory), blocking=isinstance(self.strategy, OnSpark)
        )
        self._check()

    def _check(self) -> None:
        """What cannot work is refused here, not at the first event."""
        strategy, shape = self.strategy, self.shape
        if is_copy(self.name):
            raise InvalidProjection(f"{self.name}: names that end in ~ and a number are those of copies")
        if not isinstance(strategy, Strategy):
            raise InvalidProjection(f"{self.name}: a strategy is at_least_once() or another one, not {strategy!r}")
        if isinstance(strategy, AtMostOnce) and self.recovery.retries:
            raise InvalidProjection(
                f"{self.name}: at_most_once handles nothing twice, so it cannot retry: fail or skip"
            )
        if isinstance(strategy, Flow) != shape.generator:
            raise InvalidProjection(f"{self.name}: an async generator goes with flow(), and flow() with one")
        if isinstance(strategy, Flow) and (self.recovery != Recovery() or shape.takes_view):
            raise InvalidProjection(f"{self.name}: a flow takes the envelopes alone, and only starts again as a whole")
        if isinstance(strategy, AtLeastOnce) and strategy.parallelism > 1 and (shape.stateful or shape.actor):
            raise InvalidProjection(f"{self.name}: a handler with state takes one envelope at a time: no parallelism")
        if isinstance(strategy, OnSpark) and (inspect.isclass(self.handler) or self.view or self.recovery.retries):
            raise InvalidProjection(f"{self.name}: on Spark, a handler is a plain function, and is not retried alone")
        if isinstance(strategy, ExactlyOnce) and (self.view is not None or not shape.takes_view):
            raise InvalidProjection(
                f"{self.name}: exactly_once covers what the handler writes by the view that it gets: "
                "'async def handler(envelope, view)'"
            )

    @property
    def has_copies(self) -> bool:
        """Whether there may be other copies of its view: in the store's tables, and not a copy itself."""
        return self.shape.takes_view and self.view is None and not is_copy(self.name)

    def as_copy(self, number: int, tables: Sequence[str]) -> Projection:
        """The same projection, for another copy of its view."""
        second = copy.copy(self)
        second.name, second.copies = copy_name(self.name, number), tables_of(number, tables)
        return second

    def __call__(self, *arguments: Any) -> Any:
        """The handler itself, so that a decorated function can still be called, as in a test."""
        return self.handler(*arguments)

    def __repr__(self) -> str:
        return f"Projection({self.name!r})"


def _instance(what: str, value: T, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise InvalidProjection(f"{what} is a {kind.__name__}, not {shown(value)}")
    return value


def check_projection(value: Projection) -> Projection:
    """What is to be run, rebuilt or verified: the declaration itself, because it has the handler."""
    if not isinstance(value, Projection):
        raise InvalidProjection(f"this takes a Projection, with its handler, not {shown(value)}")
    return value


def projection(name: str, *, source: Any, **settings: Any) -> Callable[[Any], Projection]:
    """Declare a projection whose handler follows.

    @everlog.projection("carts", source=everlog.records("orders"))
    async def carts(record, view): ...
    """

    def declare(handler: Any) -> Projection:
        return Projection(name, source=source, handler=handler, **settings)

    return declare
