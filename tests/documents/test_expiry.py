"""Times to live: what is written with one is deleted through the log when it is over, unless it is written again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

import everlog
from everlog import sync
from everlog.client import connect
from everlog.config import DocumentsConfig
from everlog.console.server import serving
from everlog.documents.api import Documents
from everlog.documents.documents import LocalDocuments
from everlog.documents.expiry import EXPIRY
from everlog.documents.indexes import IndexNew, IndexSortItem
from everlog.errors import DocumentNotFound, InvalidDocument, MessageReused, Unreachable
from everlog.runtime.clock import SystemClock
from everlog.runtime.failpoints import EXPIRY_POINTS, VARIABLE
from tests.support import ManualClock, small_config
from tests.waiting import until

C = "/hyper-storage/content/"


def a_minute_ago() -> ManualClock:
    """What has a second to live has expired, as the next process sees it."""
    return ManualClock(SystemClock().now_ms() - 60_000)


class World(NamedTuple):
    """Documents as a client sees them, and the ones that expire; the server looks for these only when told to."""

    docs: Documents
    local: LocalDocuments
    clock: ManualClock
    http: httpx.AsyncClient | None

    async def later(self, seconds: float) -> int:
        """Let time pass; how many were deleted."""
        self.clock.advance(seconds)
        return (await self.local.expire()).expired

    async def is_there(self, path: str) -> bool:
        try:
            await self.docs.get(path)
        except DocumentNotFound:
            return False
        return True


@pytest.fixture(params=["embedded", "http"])
async def world(request, tmp_path) -> AsyncIterator[World]:
    clock = ManualClock()
    config = msgspec.structs.replace(
        small_config(tmp_path / "data"), documents=DocumentsConfig(expiry_interval_s=3600.0)
    )
    async with connect(config, clock=clock) as log:
        assert isinstance(log.documents, LocalDocuments)
        if request.param == "embedded":
            yield World(log.documents, log.documents, clock, None)
            return
        async with (
            serving(log, host="127.0.0.1", port=0) as address,
            connect(address) as remote,
            httpx.AsyncClient(base_url=address) as http,
        ):
            yield World(remote.documents, log.documents, clock, http)


async def test_it_is_deleted_when_its_time_is_over_and_all_that_follows_it_learns(world: World) -> None:
    """Indexes, views, histories and feeds, by the normal path: a deletion by the expiry. Until then it can be read."""
    docs = world.docs
    await docs.create_index("c~", IndexNew("by-n", (IndexSortItem("n"),)))
    await docs.put_view("v~", "c~/{*}")
    await docs.put("c~/stays", {"n": 1})
    made = await docs.put("c~/goes", {"n": 2}, ttl_s=3)
    assert made.expires_ms == world.clock.now_ms() + 3000
    assert (await docs.get("c~/goes")).expires_ms == made.expires_ms
    assert (await docs.get("c~/stays")).expires_ms is None
    await docs.put("d", {"a": 1}, ttl_s=3)
    assert await world.later(2.9) == 0
    assert [await world.is_there(path) for path in ("c~/goes", "d")] == [True, True]
    world.clock.advance(0.2)
    assert await world.is_there("d"), "it can be read until it is deleted"
    assert await world.later(0) == 2
    assert [await world.is_there(path) for path in ("c~/goes", "d", "c~/stays")] == [False, False, True]

    async def shown() -> bool:
        return [one["id"] for one in (await docs.list("v~")).elements] == ["stays"]

    await until(shown)
    assert [one["id"] for one in (await docs.list("c~", sort="n")).elements] == ["stays"]
    assert (await docs.count("c~")).count == 1
    events = [event async for event in docs.history("c~")]
    assert [(one.method, one.path, one.by == EXPIRY) for one in events] == [
        ("feed:put", "c~/stays", False),
        ("feed:put", "c~/goes", False),
        ("feed:delete", "c~/goes", True),
    ]
    assert [one.expires_ms for one in events] == [None, made.expires_ms, None]
    assert await docs.at("c~/goes", 2) == {"n": 2, "id": "goes"}
    assert (await docs.put("d", {"a": 2})).created
    assert await world.later(10**9) == 0


async def test_a_later_write_decides_anew(world: World) -> None:
    """One without a time to live takes it away, by PUT and by PATCH; one with another moves it."""
    docs = world.docs
    for path in ("put", "patch", "longer", "shorter", "anew"):
        await docs.put(path, {"n": 1}, ttl_s=10)
    await docs.put("put", {"n": 2})
    await docs.patch("patch", {"n": 2})
    await docs.patch("longer", {"n": 2}, ttl_s=100)
    await docs.put("shorter", {"n": 2}, ttl_s=1)
    await docs.delete("anew")
    await docs.put("anew", {"n": 2})
    assert await world.later(1) == 1
    assert not await world.is_there("shorter")
    assert await world.later(10) == 0
    assert [await world.is_there(path) for path in ("put", "patch", "longer", "anew")] == [True] * 4
    assert await world.later(100) == 1
    assert [await world.is_there(path) for path in ("put", "patch", "longer", "anew")] == [True, True, False, True]


async def test_all_ways_to_write_take_one(world: World) -> None:
    docs, now = world.docs, world.clock.now_ms()
    posted = await docs.post("c~", {"n": 1}, ttl_s=5)
    batch = await docs.batch(
        "c~", [{"method": "put", "id": "a", "body": {}, "ttl_s": 6}, {"method": "post", "body": {}}]
    )
    lines: list[Any] = [
        {"method": "put", "path": "c~/b", "body": {}, "ttl_s": 7},
        {"method": "patch", "path": "c~/b", "body": {"x": 1}, "ttl": 8},
        {"method": "put", "path": "e", "body": 1},
        {"method": "put", "path": "e", "body": 1, "ttl": 0},
        {"method": "delete", "path": "e", "ttl": 1},
    ]
    bulk = [result async for result in docs.bulk(lines)]
    expected = [now + 5000, now + 6000, None, now + 7000, now + 8000, None]
    written = [posted, *batch, *[one.written for one in bulk if one.written is not None]]
    assert [one.expires_ms for one in written] == expected
    errors = [one.error for one in bulk if one.error is not None]
    assert [one.code for one in errors if isinstance(one, InvalidDocument)] == ["invalid-ttl", "invalid-ttl"]
    assert await world.later(8) == 3
    assert len((await docs.list("c~")).elements) == 1


async def test_what_is_no_time_to_live_is_refused(world: World) -> None:
    docs, ttls = world.docs, (0, -1, 10**11, 1.5, True, "7")
    for ttl in ttls:
        with pytest.raises(InvalidDocument) as refused:
            await docs.put("d", 1, ttl_s=ttl)
        assert refused.value.code == "invalid-ttl", ttl
    await docs.put("c~/1", {})
    for write in (docs.delete("c~/1", ttl_s=1), docs.put("e~", ttl_s=1)):
        with pytest.raises(InvalidDocument):
            await write
    with pytest.raises(DocumentNotFound):
        await docs.get("d")
    if world.http is not None:
        for text in ("", "x", "1.5", "-1", "0", "9" * 30, "1 2"):
            answer = await world.http.put(C + "d", json=1, headers={"Hyper-Storage-TTL": text})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid-ttl"), text


async def test_a_repetition_gets_the_first_instant(world: World) -> None:
    first = await world.docs.put("d", 1, ttl_s=5, message_id="m")
    world.clock.advance(2)
    again = await world.docs.put("d", 1, ttl_s=5, message_id="m")
    assert again.expires_ms == first.expires_ms is not None
    with pytest.raises(MessageReused):
        await world.docs.put("d", 1, ttl_s=6, message_id="m")


async def test_headers_over_http(tmp_path) -> None:
    """What it is given with and shown by; a server deletes by itself what has expired."""
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=DocumentsConfig(expiry_interval_s=0.1))
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address) as http,
    ):
        made = await http.put(C + "c~/x", json={"n": 1}, headers={"Hyper-Storage-TTL": "1"})
        instant = made.headers["hyper-storage-expires"]
        assert made.status_code == 201
        assert (await http.head(C + "c~/x")).headers["hyper-storage-expires"] == instant
        batch = await http.post(
            "/hyper-storage/batches/c~",
            json=[{"method": "put", "id": "y", "body": {}}],
            headers={"Hyper-Storage-TTL": "1"},
        )
        assert (batch.status_code, batch.json()["code"]) == (400, "invalid-ttl")

        async def gone() -> bool:
            return (await http.get(C + "c~/x")).status_code == 404

        await until(gone)
        events = (await http.get(C + "c~?history")).json()["_embedded"]["els"]
        assert [(one["method"], one["headers"]["by"]) for one in events] == [
            ("feed:put", "local"),
            ("feed:delete", EXPIRY),
        ]
        assert "expires" in events[0]["headers"]
        assert "expires" not in events[1]["headers"]


async def test_of_a_write_and_an_expiry_one_wins(tmp_path, monkeypatch) -> None:
    """A write between the look and the deletion keeps the document."""
    clock = ManualClock()
    async with connect(small_config(tmp_path / "data"), clock=clock) as log:
        assert isinstance(log.documents, LocalDocuments)
        docs = log.documents
        await docs.put("d", 1, ttl_s=1)
        clock.advance(1)
        expirer = (await docs.open()).expirer
        delete = expirer._delete

        async def late(command: Any) -> Any:
            await docs.put("d", 2)
            return await delete(command)

        monkeypatch.setattr(expirer, "_delete", late)
        assert (await docs.expire()).expired == 0
        assert (await docs.get("d")).body == 2
        assert [event.method async for event in docs.history("d")] == ["feed:put", "feed:put"]


async def test_what_cannot_be_deleted_stops_no_other_and_is_tried_again(tmp_path, monkeypatch) -> None:
    clock = ManualClock()
    async with connect(small_config(tmp_path / "data"), clock=clock) as log:
        assert isinstance(log.documents, LocalDocuments)
        docs = log.documents
        for name in "abc":
            await docs.put(name, 1, ttl_s=1)
        clock.advance(1)
        expirer = (await docs.open()).expirer
        delete = expirer._delete

        async def sometimes(command: Any) -> Any:
            if command.place.uri == "b":
                raise Unreachable("the store is away")
            return await delete(command)

        with monkeypatch.context() as patch:
            patch.setattr(expirer, "_delete", sometimes)
            found = await docs.expire()
            assert (found.expired, found.failed) == (2, 1)
        found = await docs.expire()
        assert (found.expired, found.failed) == (1, 0)


async def test_expirers_at_once_delete_each_once(tmp_path) -> None:
    clock = ManualClock()
    config = small_config(tmp_path / "data")
    async with connect(config, clock=clock) as one, connect(config, clock=clock) as other:
        for number in range(30):
            await one.documents.put(f"c~/{number}", {}, ttl_s=1)
        clock.advance(1)
        found = await asyncio.gather(*[log.documents.expire() for log in (one, other, one)])  # type: ignore[attr-defined]
        assert sum(each.expired for each in found) == 30
        assert [event.method async for event in one.documents.history("c~")] == ["feed:put"] * 30 + ["feed:delete"] * 30


def test_without_await_and_on_the_command_line(tmp_path) -> None:
    with sync.connect(tmp_path, clock=a_minute_ago()) as log:
        log.documents.put("d", 1, ttl_s=1)
        log.documents.put("e", 1, ttl_s=1000)
    words = [sys.executable, "-m", "everlog.cli", "--data", str(tmp_path), "docs", "expire"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "1 deleted" in done.stdout
    with sync.connect(tmp_path) as log:
        assert log.documents.get("e").expires_ms is not None
        with pytest.raises(DocumentNotFound):
            log.documents.get("d")


@pytest.mark.parametrize("point", EXPIRY_POINTS)
async def test_an_expirer_is_killed(tmp_path: Path, point: str) -> None:
    """At any point: afterwards everything that has expired is deleted, each once."""
    async with everlog.connect(tmp_path, clock=a_minute_ago()) as log:
        for number in range(5):
            await log.documents.put(f"c~/{number}", {}, ttl_s=1)
        await log.documents.put("c~/stays", {})
    environment = {**os.environ, VARIABLE: f"{point}:3"}
    words = [sys.executable, "-m", "everlog.cli", "--data", str(tmp_path), "docs", "expire"]
    done = await asyncio.to_thread(subprocess.run, words, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    async with everlog.connect(tmp_path) as log:
        assert isinstance(log.documents, LocalDocuments)
        left = 6 - (2 if point == "documents.expiring" else 3)
        assert len((await log.documents.list("c~")).elements) == left
        await (await log.documents.open()).recovery.everything()
        await log.documents.expire()
        assert [one["id"] for one in (await log.documents.list("c~")).elements] == ["stays"]
        events = [(event.method, event.path) async for event in log.documents.history("c~")]
        assert sorted(events[6:]) == [("feed:delete", f"c~/{number}") for number in range(5)]
