"""Random writes, indexes and queries on the real store: an index never changes an answer."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everlog.client import connect
from everlog.documents.api import Documents
from everlog.documents.bodies import merge
from everlog.documents.filters.tree import text_of
from everlog.documents.indexes import IndexNew, IndexSortItem
from everlog.documents.paths import DocumentPlace
from everlog.documents.query import Query
from tests.documents.test_query import conditions, scalars, sort_text, sorts
from tests.models.document_filter import naive_match, naive_sorted
from tests.support import ManualClock, small_config

URI = "c~"
items = st.sampled_from(["1", "2", "3", "4", "5", "6"])
elements = st.dictionaries(st.sampled_from("ab"), scalars, max_size=2)
puts = st.tuples(st.just("put"), items, elements)
patches = st.tuples(st.just("patch"), items, elements)
deletes = st.tuples(st.just("delete"), items, st.just(None))
clears = st.tuples(st.just("clear"), st.just(""), st.just(None))
indexes = st.tuples(st.just("index"), sorts, st.none() | conditions)
completions = st.tuples(st.just("settle"), st.just(""), st.just(None))
builds = st.tuples(st.just("build"), st.just(""), st.just(None))
some = st.tuples(st.sampled_from(["index some", "complete some"]), st.integers(1, 4), st.none())
steps = st.lists(st.one_of(puts, puts, puts, patches, deletes, clears, indexes, completions, builds, some), max_size=25)
queries = st.lists(st.tuples(st.none() | conditions, sorts, st.integers(1, 4)), min_size=1, max_size=4)


async def apply(
    docs: Documents, model: dict[str, Any] | None, step: tuple[Any, ...], number: int
) -> dict[str, Any] | None:
    """One step on the documents and on the model."""
    kind, what, value = step
    if kind == "put":
        await docs.put(f"{URI}/{what}", value)
        kept = {name: inner for name, inner in value.items() if inner is not None}
        return {**(model or {}), what: {**kept, "id": what}}
    if kind == "patch" and model is not None and what in model:
        await docs.patch(f"{URI}/{what}", value)
        return {**model, what: merge(model[what], value)}
    if kind == "delete" and model is not None and what in model:
        await docs.delete(f"{URI}/{what}")
        return {item: one for item, one in model.items() if item != what}
    if kind == "clear" and model is not None:
        await docs.delete(URI)
        return None
    if kind == "index":
        fields = [(name, descending) for name, descending in what if name != "id"]
        by = tuple(IndexSortItem(name, order="desc" if descending else "asc") for name, descending in fields)
        await docs.create_index(URI, IndexNew(f"i{number}", by, None if value is None else text_of(value)))
    elif kind == "settle":
        await docs.settle(URI)
    elif kind == "build":
        await docs.build_indexes()
    elif kind.endswith("some"):
        await complete_some(docs, what, published=kind == "complete some")
    return model


async def complete_some(docs: Documents, count: int, *, published: bool) -> None:
    """The completer ends after some writes, with or without their events."""
    parts = await docs.open()
    pending = await parts.store.pending(URI, limit=count)
    if pending:
        await parts.completer._index(URI, pending)
    if published:
        await parts.completer._publish(URI, pending)


async def ask(docs: Documents, model: dict[str, Any], asked: list[tuple[Any, ...]]) -> None:
    """Every query, page by page, equals a naive evaluation."""
    head = (await (await docs.open()).store.load(DocumentPlace(URI))).head
    assert head is not None
    for condition, sort, size in asked:
        matching = [one for one in model.values() if naive_match(condition, one)]
        expected = [one["id"] for one in naive_sorted(matching, sort)]
        text = "" if condition is None else text_of(condition)
        query = Query(filter=text, sort=sort_text(sort), size=size, explain=True)
        found: list[str] = []
        while True:
            page = await docs.list(URI, query)
            assert page.revision == head.revision
            found += [one["id"] for one in page.elements]
            assert found == expected[: len(found)], query
            if page.next is None:
                break
            query = msgspec.structs.replace(query, **page.next)
        assert found == expected, query
        assert page.explanation is not None
        known = {index.index_id: index for index in await docs.indexes(URI)}
        used = known[page.explanation.index] if page.explanation.index else None
        held = [one for one in model.values() if used is None or naive_match(used.condition, one)]
        assert page.count == len(held), (query, used)
        assert (await docs.count(URI, filter=text)).count == len(expected), text


async def run(folder: Path, todo: list[tuple[Any, ...]], asked: list[tuple[Any, ...]]) -> None:
    async with connect(small_config(folder), clock=ManualClock()) as log:
        docs, model = log.documents, None
        completer = (await docs.open()).completer
        # Nothing is completed but by the steps: so it stops anywhere.
        completer.kick = completer.kick_indexes = lambda *_: None  # type: ignore[method-assign,assignment]
        for number, step in enumerate(todo):
            model = await apply(docs, model, step, number)
            if model is not None:
                await ask(docs, model, asked)
        if model is None:
            return
        await docs.settle(URI)
        await docs.build_indexes()
        await ask(docs, model, asked)
        for index in await docs.indexes(URI):
            held = [one for one in model.values() if naive_match(index.condition, one)]
            assert index.count == len(held), index


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps, queries)
def test_answers_do_not_depend_on_indexes(todo, asked):
    """Writes, deletions and builds in any order; then every query equals a naive evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "data", todo, asked))
