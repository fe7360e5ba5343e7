"""A second copy of a view: filled beside the first, switched to, rolled back; readers see one of them, always."""

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
from everlog.errors import InvalidProjection, UnknownProjection
from everlog.projections.copies import Copies, is_copy, rename
from everlog.runtime.failpoints import REBUILD_POINTS, VARIABLE
from tests.models.rebuild_process import declare
from tests.support import small_config

RECORDS = 20


async def fill(log) -> None:
    """A view of the old version that has all there is."""
    await log.projections.view("words").execute("CREATE TABLE words (key TEXT, text TEXT)")
    for number in range(RECORDS):
        await log.journal("orders").append(f"o-{number}", Event("x"))
    await caught_up(log, "old")


async def caught_up(log, version: str) -> None:
    async with log.projections.run(declare(log.config, version)):
        for key in ("o-0", "o-1", "o-2"):  # in both partitions
            token = await log.journal("orders").append(key, Event("last"))
            await log.projections.wait("words", token)
        await everything(log)


async def everything(log) -> None:
    while (await log.projections.get("words")).lag.events:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def versions(log) -> set[tuple[str, int]]:
    """Which versions wrote how many rows of what is read: there must be one."""
    return set(await log.projections.view("words").fetch("SELECT text, count(*) FROM words GROUP BY text"))


def command(config, folder, what: str, point: str | None = None) -> int:
    file = folder / "config.json"
    file.write_bytes(msgspec.json.encode(config))
    environment = {**os.environ, **({} if point is None else {VARIABLE: point})}
    words = [sys.executable, "-m", "tests.models.rebuild_process", str(file), what]
    return subprocess.run(words, env=environment, check=False, timeout=120).returncode


STEPS = {
    "rebuild.begun": ["rebuild"],
    "rebuild.tables": ["rebuild"],
    "rebuild.filled": ["rebuild"],
    "switch.decided": ["rebuild", "switch"],
    "switch.moved": ["rebuild", "switch"],
    "abort.moved": ["rebuild", "abort"],
    "clean.tables": ["rebuild", "abort"],
}


@pytest.mark.parametrize("point", REBUILD_POINTS)
async def test_whatever_dies_readers_see_one_copy(tmp_path, point):
    """The command dies at this point; what is read is one whole copy; the same commands then come to their end."""
    config = small_config(tmp_path / "data")
    async with everlog.connect(config) as log:
        await fill(log)
        (old,) = await versions(log)
        *before, last = STEPS[point]
        for one in before:
            assert command(config, tmp_path, one) == 0
        assert command(config, tmp_path, last, point) == -signal.SIGKILL
        current = ("new", old[1]) if point == "switch.moved" else old
        assert await versions(log) == {current}
        assert command(config, tmp_path, "rebuild") == 0
        assert await versions(log) == {current}
        await log.projections.switch("words")
        assert await versions(log) == {("new", old[1])}
        await caught_up(log, "new")
        assert await versions(log) == {("new", old[1] + 3)}
        seen = await log.projections.copies("words")
        assert (seen.building, seen.garbage, set(seen.tables) - {0}) == (
            None,
            (),
            {one for one in (seen.current, seen.previous) if one},
        )
        tables = {name for (name,) in await log.projections.view("x").fetch("SELECT name FROM sqlite_master")}
        assert {name for name in tables if name.startswith("words")} == {
            "words" if not one else f"words__{one}" for one in (seen.current, seen.previous)
        }


async def test_readers_and_their_tokens_follow_a_switch(small_log):
    """A read after a token holds for the copy that is read; while switching to and fro nobody sees a mix."""
    await fill(small_log)
    projections, seen = small_log.projections, set()
    handled: list[tuple[int, int | None]] = []
    slowly = declare(small_log.config, "new", pause=0.03)  # whoever looks too early finds too little
    number = await projections.rebuild(slowly, on_progress=lambda *progress: handled.append(progress))
    assert (number, handled[-1]) == (1, (RECORDS + 3, 0))
    await projections.switch("words")
    for _ in range(20):
        await asyncio.gather(projections.switch("words", back=True), *(look(small_log, seen) for _ in range(3)))
    assert seen == {frozenset({("old", RECORDS + 3)}), frozenset({("new", RECORDS + 3)})}
    async with projections.run(declare(small_log.config, "new")):
        token = await small_log.journal("orders").append("o-9", Event("after"))
        ask = "SELECT count(*) FROM words WHERE key = 'o-9'"
        assert await projections.view("words").fetch(ask, after=token) == [(2,)]
    status = await projections.get("words")
    assert (status.name, status.lag.events) == ("words~1", 0)
    (found,) = await projections.verify(declare(small_log.config, "new"))
    assert found.equal
    assert found.rows == RECORDS + 4


async def look(log, seen: set) -> None:
    seen.add(frozenset(await versions(log)))


async def test_a_copy_may_look_different(small_log):
    """Statements make its tables as the new version wants them."""
    await fill(small_log)
    create = ["CREATE TABLE words (key TEXT, text TEXT, more INTEGER DEFAULT 7)"]

    async def handler(record, view) -> None:
        await view.execute("INSERT INTO words (key, text) VALUES (?, 'new')", record.key)

    source, strategy = everlog.records("orders"), everlog.exactly_once()
    second = everlog.Projection("words", source=source, handler=handler, strategy=strategy, tables=["words"])
    await small_log.projections.rebuild(second, create=create)
    await small_log.projections.switch("words")
    assert await small_log.projections.view("words").fetch("SELECT DISTINCT text, more FROM words") == [("new", 7)]


async def test_what_never_ran_is_not_rebuilt(small_log):
    with pytest.raises(UnknownProjection):
        await small_log.projections.rebuild(declare(small_log.config, "new"))
    assert await small_log.projections.copies("words") == Copies()


async def test_follow_keeps_the_copy_up_to_date(small_log):
    await fill(small_log)
    projections = small_log.projections
    filling = asyncio.create_task(projections.rebuild(declare(small_log.config, "new"), follow=True))
    while not (await projections.copies("words")).filled:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    token = await small_log.journal("orders").append("o-1", Event("later"))
    await projections.wait("words~1", token)
    await projections.switch("words")
    assert await filling == 1
    assert await versions(small_log) == {("new", RECORDS + 4)}


def test_names_of_copies():
    assert is_copy("owed~2")
    assert not any(map(is_copy, ("owed", "owed~", "owed~0", "owed~x", "~")))
    with pytest.raises(InvalidProjection, match="copies"):
        everlog.Projection("owed~2", source=everlog.records("x"), handler=lambda record: None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT * FROM owed", "SELECT * FROM owed__2"),
        ("SELECT * FROM Owed WHERE a = 'owed'", "SELECT * FROM owed__2 WHERE a = 'owed'"),
        ('INSERT INTO "owed" VALUES (1)', "INSERT INTO owed__2 VALUES (1)"),
        ("UPDATE main.owed SET x = 1 -- owed", "UPDATE main.owed__2 SET x = 1 -- owed"),
        ("SELECT owed.x, owed_more.x FROM owed, owed_more", "SELECT owed__2.x, owed_more.x FROM owed__2, owed_more"),
        (
            "DELETE FROM `owed` /* owed */ WHERE 'it''s owed' = ''",
            "DELETE FROM owed__2 /* owed */ WHERE 'it''s owed' = ''",
        ),
        ("SELECT 1 FROM [my sums]", "SELECT 1 FROM [my sums__2]"),
    ],
)
def test_statements_name_the_tables_of_a_copy(before, after):
    copies = {"owed": "owed__2", "my sums": "my sums__2"}
    assert rename(before, copies) == after
    assert rename(before, {}) == before
