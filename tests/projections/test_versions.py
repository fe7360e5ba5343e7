"""A view has the version of the code that first ran, and keeps it: other versions fill a copy of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.config import ProjectionsConfig
from everlog.errors import InvalidProjection
from everlog.projections.api import ProjectionStatus
from everlog.runtime.failpoints import FIRST_RUN_POINT, VARIABLE
from tests.models.version_process import declare
from tests.support import small_config
from tests.waiting import until

LEASE = 0.6


@pytest.fixture
def config(tmp_path):
    return msgspec.structs.replace(small_config(tmp_path / "data"), projections=ProjectionsConfig(lease_s=LEASE))


@pytest.fixture
async def log(config):
    async with everlog.connect(config) as found:
        await found.projections.view("words").execute("CREATE TABLE words (key TEXT, version TEXT)")
        yield found


def begin(config, tmp_path, version: str, point: str | None = None) -> subprocess.Popen:
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(config))
    environment = {**os.environ, **({} if point is None else {VARIABLE: point})}
    return subprocess.Popen([sys.executable, "-m", "tests.models.version_process", str(file), version], env=environment)


async def append(log) -> everlog.Position:
    return await log.journal("orders").append("o-1", Event("x"))


async def rows(log, *, after=None) -> list[str]:
    found = await log.projections.view("words").fetch("SELECT version FROM words ORDER BY 1", after=after)
    return [version for (version,) in found]


async def waiting(log) -> ProjectionStatus:
    """Until the second version says that it waits; what the status is then."""

    async def found():
        listed = await log.projections.list("words")
        return listed[0] if listed and listed[0].state == "waiting" else None

    return await until(found)


async def test_a_second_version_waits_for_its_own_copy(log):
    """Before the first rebuild and after an aborted one it writes nothing; after a switch it goes on."""
    async with log.projections.run(declare("1")):
        await log.projections.wait("words", await append(log))
    token = await append(log)
    async with log.projections.run(declare("2")):
        status = await waiting(log)
        assert status.version == "1"
        assert "'everlog projections rebuild words'" in status.remedy
        with pytest.raises(everlog.StillBehind, match="everlog projections rebuild words"):
            await log.projections.wait("words", token, seconds=2 * LEASE)
        await log.projections.request_rebuild("words")
        await until(lambda: _filled(log))
        assert await rows(log) == ["1"]
        await log.projections.abort("words")
        await asyncio.sleep(2 * LEASE)
        assert (await waiting(log)).version == "1"
        assert await rows(log) == ["1"], "the view is still the first version's, and untouched"
        await log.projections.request_rebuild("words")
        await until(lambda: _filled(log))
        await log.projections.switch("words")
        assert await rows(log, after=token) == ["2", "2"]
        assert (await log.projections.get("words")).version == "2"
    assert (await log.projections.switch("words", back=True)).versions[0] == "1"
    async with log.projections.run(declare("1")):
        assert await rows(log, after=token) == ["1", "1"]


async def test_a_version_that_waits_hides_no_key_of_the_one_that_runs(log):
    """It divides the source in another way: what runs is still listed, paused and waited for."""
    async with log.projections.run(declare("1")):
        await log.projections.wait("words", await append(log))
        before = {one.key for one in await log.projections.list("words")}
        async with log.projections.run(declare("2", split=2)):
            await until(lambda: _says(log, "2"))
            assert {one.key for one in await log.projections.list("words")} == before
            token = await append(log)
            await log.projections.wait("words", token)
            assert await rows(log) == ["1", "1"]


async def _filled(log) -> bool:
    return (await log.projections.copies("words")).filled


async def test_a_version_that_was_only_recorded_is_kept(log, config, tmp_path):
    """The first run dies before it has taken a key: the view has its version all the same, and can be rebuilt."""
    token = await append(log)
    assert begin(config, tmp_path, "1", FIRST_RUN_POINT).wait(60) == -signal.SIGKILL
    assert (await log.projections.copies("words")).versions == {0: "1"}
    async with log.projections.run(declare("2")):
        await until(lambda: _says(log, "2"))
        await asyncio.sleep(2 * LEASE)
        assert await rows(log) == []
        await log.projections.request_rebuild("words")
        await until(lambda: _filled(log))
        await log.projections.switch("words")
        assert await rows(log, after=token) == ["2"]


async def test_a_version_that_waits_is_listed_although_no_other_ever_ran(log):
    """As after a first run that died when it had recorded its version, and nothing else."""
    store = await log.projections.store()
    await store.update_copies("words", lambda seen: seen.recorded("1"))
    assert await log.projections.list() == []
    token = await append(log)
    async with log.projections.run(declare("2")):
        status = await waiting(log)
        assert (status.name, status.version) == ("words", "1")
        assert [(one.name, one.key) for one in await log.projections.list()] == [("words", status.key)]
        assert "version '2' waits" in status.remedy
        with pytest.raises(everlog.StillBehind, match="version '2' waits"):
            await log.projections.wait("words", token, seconds=LEASE)
    async with log.projections.run(declare("1")):
        await log.projections.wait("words", token)
    assert await rows(log, after=token) == ["1"]


async def test_a_view_is_verified_by_its_own_version_only(log):
    """Another version counts otherwise: what differs says nothing about the view."""
    async with log.projections.run(declare("1")):
        await log.projections.wait("words", await append(log))
    with pytest.raises(InvalidProjection, match="filled by version '1', not by version '3'"):
        await log.projections.verify(declare("3"), "words")
    assert [one.equal for one in await log.projections.verify(declare("1"), "words")] == [True]


async def _says(log, version: str) -> bool:
    return version in (await log.projections.copies("words")).waiting


async def test_of_two_versions_that_begin_at_once_one_has_the_view(log):
    async with log.projections.run(declare("1")), log.projections.run(declare("2")):
        token = await append(log)
        found = await rows(log, after=token)
        await until(lambda: _says(log, "2" if found == ["1"] else "1"))
    assert found in (["1"], ["2"])
    assert (await log.projections.copies("words")).versions == {0: found[0]}


async def test_an_owner_that_was_killed_is_silent(log, config, tmp_path):
    """Its lease has run out: the status says so, and what to do; another process goes on."""
    process = begin(config, tmp_path, "1")
    try:
        token = await append(log)
        await until(lambda: _runs(log))
        await log.projections.wait("words", token)
    finally:
        process.kill()
        process.wait()
    status = await until(lambda: _in_state(log, "silent"))
    assert status.owner is not None
    assert "'everlog projections run'" in status.remedy
    async with everlog.connect(config) as other:
        assert (await other.projections.get("words")).state == "silent", "one look is enough, by the clock"
    async with log.projections.run(declare("1")):
        assert await rows(log, after=await append(log)) == ["1", "1"]
        assert (await until(lambda: _in_state(log, "running"))).remedy is None
    assert (await log.projections.get("words")).state == "stopped"


async def _runs(log) -> bool:
    return bool(await log.projections.list("words"))


async def _in_state(log, state: str):
    found = await log.projections.get("words")
    return found if found.state == state else None
