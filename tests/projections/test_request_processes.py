"""Rebuild and verification on request: the command needs no code, the process that runs the projection has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.client import connect
from everlog.config import ProjectionsConfig
from everlog.errors import InvalidProjection, UnknownProjection
from tests.models.rebuild_process import declare
from tests.projections.test_copies import RECORDS, fill, versions
from tests.support import small_config


@pytest.fixture
async def log(tmp_path):
    config = msgspec.structs.replace(small_config(tmp_path / "data"), projections=ProjectionsConfig(lease_s=1.0))
    async with connect(config) as found:
        yield found


async def until(log, holds):
    async with asyncio.timeout(120):
        while not holds(seen := await log.projections.copies("words")):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return seen


async def test_a_rebuild_on_request_is_filled_followed_and_switched_to(log):
    """It is asked for while nobody runs; the runner fills the copy, keeps it up to date, and a switch ends that."""
    await fill(log)
    await log.projections.request_rebuild("words")
    assert (await log.projections.copies("words")).building is None, "nobody can do it yet"
    async with log.projections.run(declare(log.config, "new")):
        seen = await until(log, lambda seen: seen.filled)
        assert (await versions(log)) == {("old", RECORDS + 3)}, "readers see the old copy until the switch"
        token = await log.journal("orders").append("o-1", Event("later"))
        await log.projections.wait(f"words~{seen.building}", token)
        seen = await log.projections.switch("words")
        assert (seen.rebuild, seen.building) == (None, None)
        assert await versions(log) == {("new", RECORDS + 4)}


async def test_a_rebuild_goes_on_in_the_next_process(log):
    await fill(log)
    await log.projections.request_rebuild("words")
    async with log.projections.run(declare(log.config, "new", pause=0.05)):
        seen = await until(log, lambda seen: seen.rebuild.handled > 2)
        assert RECORDS <= seen.rebuild.total <= RECORDS + 6, "to begin with, some were handled and not yet stored"
    seen = await log.projections.copies("words")
    assert (seen.rebuild.open, seen.rebuild.owner, seen.filled) == (True, None, False)
    async with log.projections.run(declare(log.config, "new")):
        await until(log, lambda seen: seen.filled)
        await log.projections.abort("words")
        seen = await until(log, lambda seen: not seen.garbage)
    assert (seen.building, seen.rebuild) == (None, None)
    assert await versions(log) == {("old", RECORDS + 3)}


async def test_a_rebuild_outlives_the_process_that_does_it(log, tmp_path):
    await fill(log)
    await killed_while_it_fills(log, tmp_path)
    assert await versions(log) == {("new", RECORDS + 3)}


async def killed_while_it_fills(log, folder) -> None:
    """kill -9 in the middle of a rebuild on request: after a lease another process goes on, and the copy is whole."""
    await log.projections.request_rebuild("words")
    file = folder / "config.json"
    file.write_bytes(msgspec.json.encode(log.config))
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "tests.models.rebuild_process", str(file), "run"]
    )
    try:
        seen = await until(log, lambda seen: seen.rebuild.handled >= 3)
        dead, total = seen.rebuild.owner, seen.rebuild.total
    finally:
        process.kill()
        process.wait(30)
    await until(log, lambda seen: seen.rebuild.state == "silent")
    async with log.projections.run(declare(log.config, "new")):
        seen = await until(log, lambda seen: seen.filled)
        assert seen.rebuild.owner not in (None, dead)
        assert seen.rebuild.total >= total, "what the first one did counts"
        await log.projections.switch("words")
        await log.projections.request_verify("words")
        seen = await until(log, lambda seen: not seen.verify.open)
    assert (seen.verify.error, [one.equal for one in seen.verify.differences]) == (None, [True])


async def test_a_request_can_be_withdrawn_before_it_begins(log):
    await fill(log)
    await log.projections.request_rebuild("words")
    await log.projections.abort("words")
    async with log.projections.run(declare(log.config, "old")):
        await asyncio.sleep(1.0)
    assert (await log.projections.copies("words")).last == 0
    with pytest.raises(InvalidProjection, match="no copy"):
        await log.projections.abort("words")


async def test_a_verification_on_request_finds_damage_and_nothing_else(log):
    await fill(log)
    async with log.projections.run(declare(log.config, "old")):
        await log.projections.request_verify("words")
        seen = await until(log, lambda seen: not seen.verify.open)
        assert (seen.verify.error, [one.equal for one in seen.verify.differences]) == (None, [True])
        await log.projections.view("words").execute("DELETE FROM words WHERE key = 'o-7'")
        await log.projections.request_verify("words")
        seen = await until(log, lambda seen: not seen.verify.open)
        assert [(one.missing, one.surplus) for one in seen.verify.differences] == [(1, 0)]
        await log.projections.request_rebuild("words")
        await until(log, lambda seen: seen.filled)
        assert (await log.projections.switch("words")).verify is None, "that was about the copy before"
        await log.projections.request_verify("words")
        await until(log, lambda seen: not seen.verify.open)
        assert (await log.projections.cancel_verify("words")).verify is None


async def test_what_cannot_be_done_is_said_in_words(log):
    with pytest.raises(UnknownProjection):
        await log.projections.request_rebuild("words")

    async def noted(record) -> None: ...

    plain = everlog.Projection("words", source=everlog.records("orders"), handler=noted)
    token = await log.journal("orders").append("o", Event("x"))
    async with log.projections.run(plain):
        await log.projections.wait("words", token)
        for kind, ask in (("rebuild", log.projections.request_rebuild), ("verify", log.projections.request_verify)):
            await ask("words")
            seen = await until(log, lambda seen, kind=kind: not getattr(seen, kind).open)
            assert "tables" in getattr(seen, kind).error
