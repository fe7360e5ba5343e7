"""Pauses between tries."""

from __future__ import annotations

import random

import pytest

from everlog.runtime.retry import NO_JITTER, Backoff, pause_after


def test_waiting_grows_has_jitter_and_an_end() -> None:
    found = [Backoff(0.05, 2.0) for _ in range(20)]
    for attempt in range(1, 60):
        longest = min(2.0, 0.05 * 2 ** (attempt - 1))
        assert all(longest / 2 <= backoff.next() <= longest for backoff in found)


def test_without_jitter_it_doubles_and_begins_anew() -> None:
    backoff = Backoff(0.5, 3.0, jitter=NO_JITTER)
    assert [backoff.next() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    assert backoff.failures == 4
    backoff.reset()
    assert backoff.next() == 0.5


def test_jitter_may_be_repeated() -> None:
    one, other = (Backoff(1.0, 9.0, jitter=(1.0, 1.2), chance=random.Random(5)) for _ in range(2))
    assert [one.next() for _ in range(5)] == [other.next() for _ in range(5)]


@pytest.mark.parametrize(("failures", "pause"), [(1, 3), (2, 6), (3, 12), (4, 20), (10_000, 20)])
def test_whole_numbers_stay_whole(failures, pause) -> None:
    assert pause_after(failures, 3, 20) == pause
    assert isinstance(pause_after(failures, 3, 20), int)
