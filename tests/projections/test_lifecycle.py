"""The life of an instance, and how instances share keys, in virtual time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidProjection
from everlog.projections.lifecycle import ENDED, Lifecycle, Restart
from everlog.runtime.lease import LeaseWatch, share

# Restarts


def fail_at_once(restart: Restart, times: int) -> list[float | None]:
    """The pauses before the first restarts of a stream that fails as soon as it starts."""
    life, now, pauses = Lifecycle(restart, lambda: 0.0), 0.0, []
    for _ in range(times):
        life.start(now)
        life.fail(now)
        pauses.append(None if life.until is None else life.until - now)
        if life.until is None:
            break
        now = life.until
    return pauses


def test_the_pause_doubles_up_to_the_most():
    assert fail_at_once(Restart(), 6) == [3.0, 6.0, 12.0, 24.0, 30.0, 30.0]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_max_restarts_is_counted(most):
    """In the original the setting has no effect; here 0 means none and n means n."""
    pauses = fail_at_once(Restart(max_restarts=most), 10)
    assert len(pauses) == most + 1
    assert pauses[-1] is None


def test_the_count_begins_anew_after_a_run_longer_than_the_first_pause():
    life = Lifecycle(Restart(max_restarts=1), lambda: 0.0)
    now = 0.0
    for _ in range(5):
        life.start(now)
        now += 3.5
        life.fail(now)
        assert (life.phase, life.until) == ("backoff", now + 3.0)
        now = life.until
    life.start(now)
    life.fail(now + 3.0)
    assert life.phase == "failed"


def test_pauses_are_random_by_so_much():
    assert Restart().delay(1, 0.0) == 3.0
    assert Restart().delay(1, 1.0) == pytest.approx(3.6)
    assert Restart().delay(1000, 1.0) == pytest.approx(36.0)


@pytest.mark.parametrize(
    "bad",
    [{"min_s": 4.0, "max_s": 3.0}, {"min_s": -1.0}, {"random_factor": 2.0}, {"max_restarts": -1}],
)
def test_bad_restarts(bad):
    with pytest.raises(InvalidProjection):
        Restart(**bad)


# The state machine


@given(
    st.lists(st.sampled_from(["start", "pause", "fail", "complete", "anew", "stop", "wait"]), max_size=40), st.data()
)
def test_observers_hear_whole_stories(happenings, data):
    """Whatever happens: started, at most one failed, stopped, again and again; and nothing after the end."""
    most = data.draw(st.sampled_from([None, 0, 2]))
    life, now, heard, restarts = Lifecycle(Restart(max_restarts=most), lambda: 0.5), 0.0, [], 0
    for happening in happenings:
        if happening == "wait":
            now += data.draw(st.floats(0, 10))
        elif happening in ("start", "pause"):
            if life.phase == "new" or (life.phase == "backoff" and now >= life.until):
                heard += life.start(now)
                if happening == "pause":
                    life.pause()
        elif happening == "fail" and life.phase in ("running", "paused"):
            heard += life.fail(now)
            restarts = life.restarts
            assert (life.until is not None) == (life.phase == "backoff")
            assert most is None or restarts <= most
        elif happening == "complete" and life.phase == "running":
            heard += life.complete()
        elif happening == "anew" and life.phase in ("running", "paused"):
            heard += life.begin_anew()
        elif happening == "stop":
            heard += life.stop()
            assert life.phase in ENDED
            assert life.until is None
    heard += life.stop()
    assert re.fullmatch(r"(started (failed )?stopped )*", "".join(f"{word} " for word in heard))


def test_a_stop_during_a_backoff_is_immediate():
    life = Lifecycle(Restart(), lambda: 0.0)
    life.start(0.0)
    life.fail(0.0)
    assert life.stop() == []
    assert life.phase == "stopped"


# Sharing


def test_a_beat_that_stands_still_for_the_whole_lease_is_stale():
    watch = LeaseWatch(10.0)
    assert watch.look("a", 1, 0.0)
    assert watch.look("a", 1, 9.9)
    assert not watch.look("a", 1, 10.0)
    assert watch.look("a", 2, 10.1), "it lives again"
    assert watch.look("a", 2, 20.0)
    watch.keep(["b"])
    assert watch.look("a", 2, 99.0), "seen for the first time"


@given(st.integers(0, 9), st.integers(1, 5), st.data())
def test_shares_become_fair_and_stay_so(keys, instances, data):
    """From any start and in any order of turns: every key gets an owner, shares differ by one at most, then rest."""
    names = [f"i{number}" for number in range(instances)]
    all_keys = [f"k{number}" for number in range(keys)]
    owners = {key: data.draw(st.sampled_from([None, "gone", *names])) for key in all_keys}

    def turn(me: str) -> bool:
        shares = share(me, all_keys, owners, names)
        for key in shares.take:
            assert owners[key] in (None, "gone"), "a living owner loses nothing against its will"
            owners[key] = me
        for key in shares.give:
            assert owners[key] == me
            owners[key] = None
        return bool(shares.take or shares.give)

    for name in data.draw(st.lists(st.sampled_from(names), max_size=5)):
        turn(name)
    for _ in range(2 * keys + 2):
        if not sum(turn(name) for name in names):
            break
    assert not sum(turn(name) for name in names), "nobody moves any more"
    counts = [list(owners.values()).count(name) for name in names]
    assert sum(counts) == keys
    assert max(counts) - min(counts) <= 1


def test_no_key_moves_without_need():
    owners = {"k0": "a", "k1": "a", "k2": "b"}
    for me in "ab":
        assert share(me, owners, owners, ["a", "b"]) == ([], [])
