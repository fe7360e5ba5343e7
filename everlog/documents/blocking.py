"""Documents without `await`: the twin that `everlog.sync` hands out."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from everlog.documents.documents import Documents
from everlog.twin import FETCH, Twin, items_of

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Documents, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Twin[Documents], P], R]:
    """The method of that name, waiting for its result; a server's documents have their own."""

    @functools.wraps(method)
    def call(self: Twin[Documents], /, *args: P.args, **kwargs: P.kwargs) -> R:
        found: R = self._portal.call(getattr(self._inner, method.__name__)(*args, **kwargs))
        return found

    return call


def _iterating(
    method: Callable[Concatenate[Documents, P], AsyncIterator[R]],
) -> Callable[Concatenate[Twin[Documents], P], Iterator[R]]:
    """The method of that name, as a plain iterator."""

    @functools.wraps(method)
    def call(self: Twin[Documents], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return items_of(self._portal, getattr(self._inner, method.__name__)(*args, **kwargs), FETCH)

    return call


class BlockingDocuments(Twin[Documents]):
    """JSON documents and collections."""

    put = _blocking(Documents.put)
    patch = _blocking(Documents.patch)
    delete = _blocking(Documents.delete)
    post = _blocking(Documents.post)
    get = _blocking(Documents.get)
    list = _blocking(Documents.list)
    create_index = _blocking(Documents.create_index)
    index = _blocking(Documents.index)
    indexes = _blocking(Documents.indexes)
    delete_index = _blocking(Documents.delete_index)
    build_indexes = _blocking(Documents.build_indexes)
    put_view = _blocking(Documents.put_view)
    delete_view = _blocking(Documents.delete_view)
    transaction = _blocking(Documents.transaction)
    pending = _blocking(Documents.pending)
    settle = _blocking(Documents.settle)
    history = _iterating(Documents.history)
    revision_at = _blocking(Documents.revision_at)
    at = _blocking(Documents.at)
    diff = _blocking(Documents.diff)
