"""How something asynchronous gets a twin without `await`: each method waits for the loop that the original lives in.

class Journal(Twin[asynchronous.Journal]):
    append = blocking(asynchronous.Journal.append)
    keys = iterating(asynchronous.Journal.keys)
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from everlog.runtime.portal import Portal

FETCH = 500

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Twin(Generic[T]):
    """Something asynchronous, and the door to the loop that it lives in."""

    def __init__(self, inner: T, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal


def _of(inner: T, method: Callable[Concatenate[T, P], R]) -> Callable[P, R]:
    """The object's own method of this name: a server's journals are not what a folder's are."""
    found: Callable[P, R] = getattr(inner, method.__name__, functools.partial(method, inner))
    return found


def blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Twin[T], P], R]:
    """The method, waiting for its result."""

    @functools.wraps(method)
    def call(self: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(_of(self._inner, method)(*args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[T, P], AsyncIterator[R]],
    fetch: int = FETCH,
) -> Callable[Concatenate[Twin[T], P], Iterator[R]]:
    """The method, as a plain iterator that fetches several items at a time; one, where they come as they happen."""

    @functools.wraps(method)
    def call(self: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return items_of(self._portal, _of(self._inner, method)(*args, **kwargs), fetch)

    return call


def flattening(
    method: Callable[Concatenate[T, P], AsyncIterator[list[R]]],
) -> Callable[Concatenate[Twin[T], P], Iterator[R]]:
    """The method, as a plain iterator over the items of its pages, one page at a time."""

    @functools.wraps(method)
    def call(self: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        pages = items_of(self._portal, _of(self._inner, method)(*args, **kwargs), 1)
        return (item for page in pages for item in page)

    return call


def items_of(portal: Portal, source: AsyncIterator[R], fetch: int) -> Iterator[R]:
    """What an asynchronous iterator gives; an error comes after the items before it."""
    try:
        error: Exception | None = None
        while error is None:
            items, error = portal.call(_take(source, fetch))
            yield from items
        if not isinstance(error, StopAsyncIteration):
            raise error
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            # Without waiting: a forgotten iterator may be collected in the loop's own thread.
            portal.send(close())


async def _take(source: AsyncIterator[R], count: int) -> tuple[list[R], Exception | None]:
    items: list[R] = []
    try:
        while len(items) < count:
            items.append(await anext(source))
    except Exception as error:
        return items, error
    return items, None
