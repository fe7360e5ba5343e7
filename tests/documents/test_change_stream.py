"""The changes of many documents: what a naive filter over all histories says, in the order of each document."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.documents.api import Documents
from everlog.documents.bodies import merge
from everlog.documents.change_stream import StreamedChange
from everlog.documents.filters.parser import parse_filter
from everlog.documents.history import DocumentEvent
from everlog.errors import DocumentConflict, DocumentNotFound, InvalidDocument, InvalidPosition
from everlog.wire.errors import code_of
from tests.models.document_filter import naive_match
from tests.support import small_config


@pytest.fixture(params=["embedded", "http"])
async def log(request, tmp_path) -> AsyncIterator[Everlog]:
    async with connect(small_config(tmp_path / "data")) as local:
        if request.param == "embedded":
            yield local
            return
        async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
            yield remote


@pytest.fixture
def docs(log: Everlog) -> Documents:
    return log.documents


async def take(docs: Documents, count: int, *arguments: Any, **options: Any) -> list[StreamedChange]:
    found: list[StreamedChange] = []
    if not count:
        return found
    async with asyncio.timeout(60), contextlib.aclosing(docs.changes(*arguments, **options)) as changes:
        async for change in changes:
            if change.event is not None:
                found.append(change)
                if len(found) == count:
                    return found
    raise AssertionError("a stream ended")


def event_of(change: StreamedChange) -> DocumentEvent:
    assert change.event is not None
    return change.event


def short(changes: list[StreamedChange]) -> list[tuple[str, str]]:
    return [(event_of(one).method.removeprefix("feed:"), event_of(one).path) for one in changes]


URIS = ["shop/a", "shop/b~", "shop/c/d~", "shopping", "x~"]
FILTER = "n + m > 2"


async def write_randomly(docs: Documents, chance: random.Random, count: int) -> list[tuple[str, str, Any]]:
    """Writes of all kinds; method, path, and the body after it, of those that were accepted."""
    state: dict[str, Any] = {}
    done: list[tuple[str, str, Any]] = []
    for _ in range(count):
        uri = chance.choice(URIS)
        path = f"{uri}/{chance.choice('pq')}" if uri.endswith("~") else uri
        body = {name: chance.randrange(4) for name in "nm" if chance.random() < 0.6}
        (kind,) = chance.choices(["put", "patch", "delete", "clear"], [4, 12, 1, 1])
        with contextlib.suppress(DocumentNotFound):
            if kind == "put":
                await docs.put(path, body)
                state[path] = {**body, "id": path.rpartition("/")[2]} if uri.endswith("~") else body
            elif kind == "patch":
                await docs.patch(path, body)
                state[path] = merge(state[path], body)
            elif kind == "delete" or not uri.endswith("~"):
                await docs.delete(path)
                del state[path]
            else:
                path, kind = uri, "delete"
                await docs.delete(uri)
                state = {name: one for name, one in state.items() if not name.startswith(f"{uri}/")}
            done.append((kind if kind != "clear" else "delete", path, state.get(path)))
    for uri in URIS:
        await docs.settle(uri)
    return done


def by_uri(changes: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for method, path in changes:
        uri = next(one for one in URIS if path == one or path.startswith(f"{one}/"))
        found.setdefault(uri, []).append((method, path))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_is_a_naive_filter_over_all_changes(docs: Documents, seed: int) -> None:
    """Cut after a few changes each time, and resumed; some patches are judged when their document has changed again."""
    chance = random.Random(seed)
    done = await write_randomly(docs, chance, 80)
    node = parse_filter(FILTER)
    wanted = [
        (method, path)
        for method, path, body in done
        if path.startswith("shop/") and (method == "delete" or naive_match(node, body))
    ]
    found: list[StreamedChange] = []
    position = "0"
    while len(found) < len(wanted):
        some = await take(
            docs, min(chance.randint(1, 9), len(wanted) - len(found)), "shop/", filter=FILTER, after=position
        )
        found += some
        position = some[-1].position
    assert by_uri(short(found)) == by_uri(wanted)
    assert len({(event_of(one).path, event_of(one).transaction_id) for one in found}) == len(found)
    everything = await take(docs, len(done), after="0")
    assert by_uri(short(everything)) == by_uri([(method, path) for method, path, _ in done])


async def test_what_is_selected(docs: Documents) -> None:
    for path in ("shop", "shop/a", "shopping", "shop/b~/1", "shop/b~/2", "shop/c~/1"):
        await docs.put(path, {}, wait=True)
    await docs.delete("shop/b~", wait=True)
    await docs.put("end", {}, wait=True)

    async def paths(*arguments: Any, count: int, **options: Any) -> list[str]:
        return sorted(path for _, path in short(await take(docs, count, *arguments, after="0", **options)))

    assert await paths("shop", count=6) == ["shop", "shop/a", "shop/b~", "shop/b~/1", "shop/b~/2", "shop/c~/1"]
    assert await paths("shop/b~", count=3) == ["shop/b~", "shop/b~/1", "shop/b~/2"]
    assert await paths("shop/b~/1", count=2) == ["shop/b~", "shop/b~/1"]
    assert await paths(template="shop/{*}~/{*}", count=4) == ["shop/b~", "shop/b~/1", "shop/b~/2", "shop/c~/1"]
    assert await paths(template="shop/b~/{*}", count=3) == ["shop/b~", "shop/b~/1", "shop/b~/2"]
    assert await paths(template="shop/{*}", count=2) == ["shop/a", "shop/b~"]
    assert await paths("shop/b~", template="{*}", count=0) == []


async def test_a_stream_begins_now(docs: Documents) -> None:
    await docs.put("a", 1, wait=True)
    reading = asyncio.create_task(take(docs, 1))
    n = 0
    async with asyncio.timeout(60):
        while not reading.done():
            n += 1
            await docs.put("b", n, wait=True)
    (change,) = await reading
    assert event_of(change).path == "b"
    (after,) = await take(docs, 1, after="0")
    assert event_of(after).path in ("a", "b")


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"filter": "n >"}, InvalidDocument, "invalid-filter"),
        ({"filter": "n > unix_time()"}, InvalidDocument, "invalid-filter"),
        ({"template": "a"}, InvalidDocument, "invalid-template"),
        ({"prefix": "a//b"}, InvalidDocument, "invalid-path"),
        ({"after": "7"}, InvalidPosition, "invalid-position"),
        ({"after": "0=x"}, InvalidPosition, "invalid-position"),
        ({"after": "x=0"}, InvalidPosition, "invalid-position"),
        ({"after": "0=99"}, DocumentConflict, "position-beyond-end"),
        ({"after": "99=1"}, DocumentConflict, "position-beyond-end"),
    ],
)
async def test_what_is_refused(docs: Documents, options: dict[str, str], error: Any, code: str) -> None:
    await docs.put("a", 1, wait=True)
    with pytest.raises(error) as caught:
        await take(docs, 1, **options)
    assert code_of(caught.value) == code
