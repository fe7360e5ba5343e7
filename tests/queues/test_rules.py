"""The rules of queues: every state with every event, the algebra of the merge, keys, priorities, options."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.config.queue_options import QueueSettings, Rate, make_options, parse_rate
from everlog.core.duration import duration_text, milliseconds
from everlog.errors import InvalidConfig, InvalidInput, InvalidKey, InvalidPriority
from everlog.queues import rules
from everlog.queues.keys import MAX_KEY_BYTES, decode_key, encode_key, encode_value, hash_key
from everlog.queues.priority import Priority, check_priority, parse_priority
from everlog.queues.rows import Image, JobRow, Packet

NOW = 1_000_000
SETTINGS = QueueSettings()


def image(data: bytes = b"d", *, priority=128, process=NOW, inserted=NOW, expires=0, date=NOW, schema=1) -> Image:
    return Image(priority, process, inserted, expires, date, schema, data)


def row(**changes) -> JobRow:
    return replace(JobRow(1, b"k", b"h" * 16, image(b"old")), **changes)


def running(**changes) -> JobRow:
    return replace(rules.claim(row(), "w", NOW, 1000), **changes)


images = st.builds(
    Image,
    st.integers(0, 255),
    st.integers(0, 50),
    st.integers(0, 50),
    st.sampled_from([0, 1, 2, 3]),
    st.integers(0, 50),
    st.integers(1, 2),
    st.binary(max_size=2),
)
waits = st.sampled_from([0, 1, 10, 100]).map(lambda wait: QueueSettings(max_wait_ms=wait))


def but_inserted(found: Image) -> Image:
    return replace(found, inserted_ms=0)


@given(images, images, waits)
def test_merging_again_changes_nothing(first, second, settings):
    merged = rules.merge(first, second, settings)
    assert rules.merge(merged, second, settings) == merged
    assert rules.merge(first, first, SETTINGS) == first


@given(images, images, images)
def test_merges_can_be_grouped_in_any_way(a, b, c):
    left = rules.merge(rules.merge(a, b, SETTINGS), c, SETTINGS)
    right = rules.merge(a, rules.merge(b, c, SETTINGS), SETTINGS)
    assert left == right


@given(st.lists(images, min_size=1, max_size=4, unique_by=lambda found: found.data_date), st.randoms())
def test_the_order_of_distinct_dates_does_not_matter(packets, random):
    def folded(order):
        result = order[0]
        for packet in order[1:]:
            result = rules.merge(result, packet, SETTINGS)
        return result

    shuffled = list(packets)
    random.shuffle(shuffled)
    assert but_inserted(folded(packets)) == but_inserted(folded(shuffled))


@given(images, images, waits)
def test_a_merge_is_what_the_table_says(held, incoming, settings):
    merged = rules.merge(held, incoming, settings)
    assert merged.priority == min(held.priority, incoming.priority)
    assert merged.inserted_ms == held.inserted_ms
    assert (merged.expires_s == 0) == (0 in (held.expires_s, incoming.expires_s))
    latest = held.inserted_ms + settings.max_wait_ms if settings.max_wait_ms else incoming.process_ms
    assert merged.process_ms == max(held.process_ms, min(incoming.process_ms, latest))
    winner = incoming if incoming.data_date >= held.data_date else held
    assert (merged.data, merged.data_date, merged.schema) == (winner.data, winner.data_date, winner.schema)


@pytest.mark.parametrize(("expires", "now", "gone"), [(0, 10**15, False), (5, 5000, False), (5, 5001, True)])
def test_expiration_is_strict_and_zero_is_never(expires, now, gone):
    assert rules.is_expired(image(expires=expires), now) is gone


def test_overdue_is_strict():
    assert not rules.is_overdue(running(), NOW + 1000)
    assert rules.is_overdue(running(), NOW + 1001)
    assert not rules.is_overdue(row(), NOW + 10**9)


def test_a_packet_from_the_future_is_not_believed():
    packet = Packet(b"k", b"h", b"d", 5, NOW + 5001, NOW + 7000)
    assert rules.arrive(packet, NOW, SETTINGS) == (image(priority=5, process=NOW + 7000), True)
    near = replace(packet, inserted_ms=NOW + 5000)
    assert rules.arrive(near, NOW, SETTINGS)[1] is False


# Every way in which an attempt can end, for every kind of running row: (successor, cancelled, expired, last attempt).
ENDINGS = ("done", "timeout", "failed", "failed for good", "released")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("slot", "cancelled", "expired", "last"), list(itertools.product([None, "live", "dead"], *[[False, True]] * 3))
)
def test_every_end_of_every_attempt(ending, slot, cancelled, expired, last):
    """Nothing is in two places or in none: the job goes on, or is done, dead, cancelled or expired."""
    settings = QueueSettings(max_timeouts=3)
    now = NOW + 10_000
    successor = {None: None, "live": image(b"new", date=NOW + 1), "dead": image(b"new", expires=NOW // 1000)}[slot]
    before = running(
        timeouts=2 if last else 0,
        slot=successor,
        stop="cancel" if cancelled else None,
        image=image(b"old", expires=NOW // 1000 if expired else 0),
    )
    if ending == "done":
        change = rules.done(before, now)
    elif ending == "released":
        change = rules.release(before, now, settings)
    else:
        how = "timeout" if ending == "timeout" else "failed"
        change = rules.end_attempt(before, now, settings, how, retry=ending != "failed for good")
    counted = ending not in ("done", "released")
    killed = counted and not cancelled and not expired and (last or ending == "failed for good")
    gone = ending == "done" or cancelled or expired or killed
    live = slot == "live"
    if gone:
        assert (change.dead is not None) == (killed or (cancelled and ending != "done"))
        assert (change.row is None) == (not live or ending != "done")
        held = change.row.image if change.row is not None else change.fresh
        assert held == (successor if live else None)
        assert change.expired == (slot == "dead") + (expired and not cancelled and ending != "done")
    else:
        assert (change.dead, change.fresh) == (None, None)
        assert change.row is not None
        assert change.row.status == "W"
        assert change.row.image.data == (b"new" if live else b"old")
        assert change.row.timeouts == (0 if live else counted + (2 if last else 0))
        assert change.expired == (slot == "dead")
    assert [reason for reason in change.flags if reason != "lifetime_timeouts"] == (
        ["max_timeouts" if ending == "timeout" else "failed"] if killed else []
    )
    if change.row is not None:
        assert (change.row.token, change.row.slot, change.row.stop) == (before.token, None, None)
        assert change.row.lifetime == before.lifetime + counted
        assert (change.row.start_ms, change.row.owner) == (None, None)
    if change.dead is not None:
        assert change.dead.image.data == b"old"


def test_only_the_token_of_the_claim_holds():
    held = running()
    assert rules.holds(held, held.token)
    assert not rules.holds(held, held.token - 1)
    assert not rules.holds(held, held.token + 1)
    assert not rules.holds(rules.waiting(held), held.token)
    assert not rules.holds(None, 1)


def test_tokens_only_grow():
    found, tokens = row(), []
    for _ in range(5):
        found = rules.claim(rules.waiting(found), "w", NOW, 10)
        tokens.append(found.token)
    assert tokens == [1, 2, 3, 4, 5]


def test_attempts_are_kept_up_to_a_limit():
    found = row()
    for n in range(40):
        change = rules.end_attempt(
            rules.claim(found, f"w{n}", NOW, 10), NOW + n, QueueSettings(max_timeouts=255), "failed", reason=str(n)
        )
        assert change.row is not None
        found = change.row
    assert [attempt.reason for attempt in found.attempts] == [str(n) for n in range(24, 40)]


@pytest.mark.parametrize(("counter", "pause"), [(1, 100), (2, 200), (3, 400), (10, 1000), (255, 1000)])
def test_backoff_doubles_up_to_a_limit(counter, pause):
    assert rules.backoff(counter, QueueSettings(retry_backoff_ms=100, max_retry_backoff_ms=1000)) == pause
    assert rules.backoff(counter, SETTINGS) == 0


def test_aging_counts_whole_steps_down_to_zero():
    found = image(priority=5, process=NOW)
    assert [
        rules.effective_priority(found, NOW + at, QueueSettings(aging_ms=10)) for at in (-50, 9, 10, 49, 50, 5000)
    ] == [
        5,
        5,
        4,
        1,
        0,
        0,
    ]


ENDS = {
    "done": lambda busy: rules.done(busy, NOW),
    "failed": lambda busy: rules.end_attempt(busy, NOW, SETTINGS, "failed", delay_ms=0),
    "given up": lambda busy: rules.end_attempt(busy, NOW, SETTINGS, "failed", retry=False),
    "timed out": lambda busy: rules.end_attempt(busy, NOW, SETTINGS, "timeout"),
    "killed": lambda busy: rules.end_attempt(replace(busy, timeouts=4), NOW, SETTINGS, "timeout"),
    "released": lambda busy: rules.release(busy, NOW, SETTINGS),
    "cancelled": lambda busy: rules.release(replace(busy, stop="cancel"), NOW, SETTINGS),
    "expired": lambda busy: rules.release(replace(busy, image=image(expires=1)), NOW, SETTINGS),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_expired_successor_never_runs(end):
    """However the run before it ends: it is dropped, and counted; one second earlier it would live on."""
    last = NOW // 1000 - 1  # NOW is strictly after this second
    for expires, lives in ((last, False), (last + 1, True), (0, True)):
        change = ENDS[end](running(slot=image(b"new", expires=expires)))
        left = [found.data for found in (change.fresh, change.row and change.row.image) if found is not None]
        assert (b"new" in left) is lives, expires
        assert change.expired == (end == "expired") + (not lives)
        assert change.row is None or change.row.slot is None


def test_an_arrival_does_not_merge_with_an_expired_successor():
    """It begins anew: neither the urgency nor the date of what has expired counts."""
    last = NOW // 1000 - 1
    old = image(b"old", priority=1, process=NOW + 9000, inserted=NOW - 5000, expires=last)
    incoming = image(b"new", priority=50, expires=last + 60)
    assert rules.merge_slot(running(slot=old), incoming, NOW, SETTINGS).slot == incoming
    living = replace(old, expires_s=last + 1)
    merged = rules.merge_slot(running(slot=living), incoming, NOW, SETTINGS).slot
    assert (merged.priority, merged.process_ms, merged.inserted_ms) == (1, NOW + 9000, NOW - 5000)


def test_the_hash_is_murmur3():
    """Golden values of MurmurHash3 x64 128."""
    assert hash_key(b"", 0).hex() == "00000000000000000000000000000000"
    assert hash_key(b"hello", 0).hex() == "029bbd41b3a7d8cb191dae486a901e5b"
    fox = b"The quick brown fox jumps over the lazy dog"
    assert hash_key(fox, 0).hex() == "6c1b07bc7bbc4be347939ac4a93c437a"
    assert hash_key(fox).hex() == "c363944a169f1493ab48c691192a99cb"


key_values = st.one_of(st.text(max_size=8), st.binary(max_size=8), st.integers(-(2**63), 2**63 - 1))


@given(st.one_of(key_values, st.lists(key_values, min_size=2, max_size=4).map(tuple)))
def test_a_key_comes_back_from_its_bytes(key):
    assert decode_key(encode_key(key)) == key
    assert len(hash_key(encode_key(key))) == 16


@given(st.lists(key_values, min_size=1, max_size=3).map(tuple), st.lists(key_values, min_size=1, max_size=3).map(tuple))
def test_different_keys_have_different_bytes(first, second):
    same = [type(a) for a in first] == [type(b) for b in second] and first == second
    assert (encode_key(first) == encode_key(second)) == same


@given(st.integers(-128, 127), st.integers(-128, 127))
def test_numbers_sort_as_bytes(a, b):
    assert (encode_value(a, 8) < encode_value(b, 8)) == (a < b)


@pytest.mark.case("journal-tables", 11)
@pytest.mark.parametrize("key", [None, 1.5, True, (), [], "x" * MAX_KEY_BYTES, 2**63, "\ud800", ("a", None)])
def test_what_is_no_key(key):
    """A missing key, or one of a wrong type or size, is an error before any I/O."""
    with pytest.raises(InvalidKey):
        encode_key(key)


@pytest.mark.case("journal-tables", 11)
@pytest.mark.parametrize("priority", [256, -1, 1.0, "5", None, True])
def test_what_is_no_priority(priority):
    """Out of range is refused, never cut to fit."""
    with pytest.raises(InvalidPriority):
        check_priority(priority)


def test_priorities_have_names():
    named = {name: int(value) for name, value in Priority.__members__.items()}
    assert named == {
        "NOW": 0,
        "IMPORTANT": 10,
        "NEW_PAGE": 20,
        "RESET": 50,
        "UPDATES": 180,
        "SLOW": 200,
        "REVIEW": 230,
        "TIME_ALLOWS": 255,
    }
    assert [parse_priority(text) for text in ("now", "Time-Allows", "17")] == [0, 255, 17]
    for wrong in ("256", "-1", "soon", "1.5", ""):
        with pytest.raises(InvalidPriority):
            parse_priority(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_wait": "1x"},
        {"max_wait": -1},
        {"processing_timeout": 0},
        {"processing_timeout": "2d"},
        {"max_timeouts": 0},
        {"max_timeouts": 256},
        {"on_busy": "wait"},
        {"rate_limit": "ten"},
        {"rate_limit": "0/s"},
        {"bucket": "week"},
        {"no_such": 1},
        {"file": "/x.db"},
        {"shards": 65},
    ],
)
def test_wrong_options_are_named(wrong):
    (name,) = wrong
    with pytest.raises(InvalidConfig, match=name):
        make_options(**wrong)


def test_durations_and_rates():
    assert [milliseconds(text) for text in ("1h", "90 s", "5ms", 2, 0.25)] == [3_600_000, 90_000, 5, 2000, 250]
    for wrong in ("", "1", "h", -1, float("inf"), float("nan"), True, "100000d"):
        with pytest.raises(InvalidInput):
            milliseconds(wrong)
    assert [duration_text(ms) for ms in (0, 1, 1000, 60_000, 5_400_000, 86_400_000)] == [
        "0ms",
        "1ms",
        "1s",
        "1m",
        "90m",
        "1d",
    ]
    assert parse_rate("10/s") == Rate(10, 1000)
    assert parse_rate(" 3 / 10 m ") == Rate(3, 600_000)
