"""A journal of any length is read page by page: it never sits in memory as a whole."""

from __future__ import annotations

import tracemalloc

import pytest

import everlog
from everlog import Event
from everlog.config import Config, JournalConfig
from everlog.testing.replication import replicate

APPENDS, EVENTS, SIZE = 600, 20, 1000
WHOLE = APPENDS * EVENTS * SIZE


@pytest.fixture
async def long_journal(tmp_path):
    """Twelve thousand events of a kilobyte, the first half replicated, the second in the tail."""
    settings = JournalConfig(page_size=20, segment_size=1000)
    async with everlog.connect(Config(data=str(tmp_path), journal=settings)) as log:
        for number in range(APPENDS):
            await log.journal("long").append("k", [Event("x" * SIZE)] * EVENTS)
            if number == APPENDS // 2:
                await replicate(log)
        yield log.journal("long")


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_read_holds_a_page_at_a_time(long_journal, reverse) -> None:
    """The most that a read ever holds is a small part of the journal, from the tables and from the tail."""
    tracemalloc.start()
    try:
        expected = iter(range(APPENDS * EVENTS, 0, -1) if reverse else range(1, APPENDS * EVENTS + 1))
        async for event in long_journal.read("k", reverse=reverse):
            assert event.seq_nr == next(expected)
        assert next(expected, None) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < WHOLE / 3, f"{peak:,} of {WHOLE:,} bytes"


async def test_the_first_event_does_not_wait_for_the_last(long_journal, monkeypatch) -> None:
    """A reader that stops early has caused no more than a page or two to be loaded."""
    asked = []
    rows = long_journal.parts.store.rows

    async def noting(*args, **options):
        found = await rows(*args, **options)
        asked.append(len(found))
        return found

    monkeypatch.setattr(long_journal.parts.store, "rows", noting)
    async for event in long_journal.read("k"):
        if event.seq_nr == 30:
            break
    assert asked == [20, 20]
