"""Owners that were killed, and versions that wait: what the status says of them, here, over HTTP and on the console."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

import everlog
from everlog import Event, exactly_once, records
from everlog.projections.port import Report
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from tests.http_support import server
from tests.support import small_config

KEY = "journal-orders"
DEAD_S = 3600.0


async def with_view(record, view) -> None:
    """Does nothing."""


async def die_as_owner(log) -> None:
    """As a process that was killed left it: it has the key, and a rebuild and a verification under way."""
    store = await log.projections.store()
    beat_ms = round((time.time() - DEAD_S) * 1000)
    lease = await store.take(ProjectionId("words", KEY), "dead", (await store.leases("words"))[KEY])
    assert lease is not None
    await store.renew(lease, Report(state="running", updated_ms=beat_ms))
    for ask in (log.projections.request_rebuild, log.projections.request_verify):
        await ask("words")

    def taken(seen):
        owned = {"owner": "dead", "beat": 1, "beat_ms": beat_ms}
        return replace(seen, rebuild=replace(seen.rebuild, **owned), verify=replace(seen.verify, **owned))

    await store.update_copies("words", taken)


@asynccontextmanager
async def ran_once(folder) -> AsyncIterator[tuple]:
    async with server(small_config(folder), writable=True) as (log, http):
        token = await log.journal("orders").append("o", Event("x"))
        settings = {"strategy": exactly_once(), "tables": ["words"], "version": "1"}
        async with log.projections.run(Projection("words", source=records("orders"), handler=with_view, **settings)):
            await log.projections.wait("words", token)
        yield log, http


async def test_what_a_killed_process_did_is_silent(tmp_path):
    async with ran_once(tmp_path / "data") as (log, http):
        await die_as_owner(log)
        async with everlog.connect(str(http.base_url)) as remote:
            for where in (log, remote):
                (status,) = await where.projections.list("words")
                assert (status.state, "everlog projections run" in status.remedy) == ("silent", True)
                seen = await where.projections.copies("words")
                for request in (seen.rebuild, seen.verify):
                    assert request.state == "silent"
                    assert request.silent_s == pytest.approx(DEAD_S, abs=60)
        body = (await http.get("/projections/words")).json()
        assert body["projections"][0]["state"] == "silent"
        assert [body["copies"][kind]["state"] for kind in ("rebuild", "verify")] == ["silent", "silent"]
        page = (await http.get("/console/projections/?name=words")).text
        for text in ("The rebuild stands still", "The verification stands still"):
            assert text in page


async def test_a_request_without_an_owner_waits_and_one_that_beats_runs(tmp_path):
    async with ran_once(tmp_path / "data") as (log, _):
        await log.projections.request_rebuild("words")
        assert (await log.projections.copies("words")).rebuild.state == "waiting"
        await die_as_owner(log)
        store, now_ms = await log.projections.store(), round(time.time() * 1000)
        await store.update_copies("words", lambda seen: replace(seen, rebuild=replace(seen.rebuild, beat_ms=now_ms)))
        assert (await log.projections.copies("words")).rebuild.state == "running"


async def test_a_version_that_waits_is_named_over_http(tmp_path):
    async with ran_once(tmp_path / "data") as (log, http):
        store, now_ms = await log.projections.store(), round(time.time() * 1000)
        await store.update_copies("words", lambda seen: seen.waits("2", now_ms))
        (status,) = (await http.get("/projections/words")).json()["projections"]
        assert (status["state"], status["version"]) == ("waiting", "1")
        assert "version '2' waits" in status["remedy"]
