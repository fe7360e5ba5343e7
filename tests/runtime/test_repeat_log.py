"""Failures that repeat: one traceback for each cause, and a bound for causes without end."""

from __future__ import annotations

import logging

from everlog.runtime.repeat_log import FORGET_S, MAX_CAUSES, REPEAT_INTERVAL_S, RepeatLog


class Times:
    """A time that a test moves on."""

    now = 0.0


def test_causes_in_turn_are_said_once_each_and_then_now_and_then(caplog):
    repeats = RepeatLog(logging.getLogger("everlog.test"), lambda: Times.now)
    for _ in range(100):
        for cause in "abc":
            repeats.warn("kind", cause, f"{cause} failed", ValueError(cause))
    assert [record.getMessage() for record in caplog.records] == ["a failed", "b failed", "c failed"]
    assert all(record.exc_info for record in caplog.records)
    caplog.clear()
    Times.now += REPEAT_INTERVAL_S
    repeats.warn("kind", "b", "b failed", ValueError("b"))
    assert [record.getMessage() for record in caplog.records] == ["b failed (101 times in 60 s)"]
    assert not caplog.records[0].exc_info


def test_causes_without_end_share_a_line(caplog):
    """As if each failure had a cause of its own: neither the log nor the memory grows with them."""
    repeats = RepeatLog(logging.getLogger("everlog.test"), lambda: Times.now)
    for number in range(10 * MAX_CAUSES):
        repeats.warn("kind", number, f"{number} failed")
        repeats.warn("other", 0, "the other failed")
    assert len(caplog.records) == MAX_CAUSES + 1
    caplog.clear()
    Times.now += 2 * FORGET_S
    repeats.warn("kind", "new", "new failed")
    assert [record.getMessage() for record in caplog.records] == ["new failed"], "what is long over makes room"


def test_what_went_well_is_forgotten(caplog):
    repeats = RepeatLog(logging.getLogger("everlog.test"), lambda: Times.now)
    for _ in range(2):
        repeats.warn("kind", "a", "a failed")
        repeats.clear("kind")
    assert len(caplog.records) == 2
