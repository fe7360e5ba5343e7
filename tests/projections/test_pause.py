"""Keys that a verification pauses run again afterwards, whoever dies."""

from __future__ import annotations

import pytest

from everlog.projections.sqlite.offset_store import SqliteOffsetStore
from everlog.projections.verification import hold_paused


class Commands:
    """Notes what is paused."""

    def __init__(self) -> None:
        self.paused: set[str | None] = set()

    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        assert wait_s is not None, "a comparison must not begin before they stand"
        self.paused.add(key)

    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        self.paused.discard(key)


@pytest.fixture
async def store(tmp_path):
    found = SqliteOffsetStore(tmp_path / "projections.db")
    yield found
    await found.close()


async def test_they_stand_and_run_again(store) -> None:
    commands = Commands()
    commands.paused = {"by hand"}
    async with hold_paused(commands, store, "owed", ["a", "b"]):
        assert commands.paused == {"a", "b", "by hand"}
        assert (await store.copies("owed")).paused == ("a", "b")
    assert commands.paused == {"by hand"}
    assert (await store.copies("owed")).paused == ()


async def test_they_run_again_after_an_error(store) -> None:
    commands = Commands()
    with pytest.raises(ZeroDivisionError):
        async with hold_paused(commands, store, "owed", ["a"]):
            raise ZeroDivisionError
    assert commands.paused == set()
    assert (await store.copies("owed")).paused == ()


async def test_what_a_dead_one_left_standing_runs_again(store) -> None:
    """Then none of them runs: what was paused by hand before is known only because it was not noted."""
    commands = Commands()
    died = hold_paused(commands, store, "owed", ["a", "b"])
    await died.__aenter__()
    commands.paused.add("by hand")
    async with hold_paused(commands, store, "owed", []):
        assert commands.paused == {"a", "b", "by hand"}
    assert commands.paused == {"by hand"}
    assert (await store.copies("owed")).paused == ()
