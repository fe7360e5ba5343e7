"""Scalars, segment formulas and hashes: spec sections 1.1 and 1.4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.values import (
    HEAD_SEGMENTS,
    LEGACY_HEAD_SEGMENTS,
    MAX_SEQ_NR,
    Position,
    SeqNr,
    SeqRange,
    check_id,
    head_segment,
    java_hash,
    murmur2,
    partition_of,
    segment_of,
    segments_of_partition,
)
from everlog.errors import InvalidId, InvalidPosition, InvalidRange, InvalidSeqNr


@pytest.mark.case("kafka-journal", 6)
def test_a_seq_nr_is_between_one_and_the_largest_long() -> None:
    """SeqNr 0 and what is past 2^63-1 cannot be constructed."""
    assert SeqNr(1) == 1
    assert SeqNr(MAX_SEQ_NR) == 2**63 - 1
    for wrong in (0, -1, MAX_SEQ_NR + 1, True, 1.0, "1", None):
        with pytest.raises(InvalidSeqNr):
            SeqNr(wrong)


@pytest.mark.case("kafka-journal", 6)
def test_a_range_does_not_end_before_it_begins() -> None:
    """The range 5..3 cannot be constructed, nor one with a bad seqNr at either end."""
    assert SeqRange(3, 5) == (3, 5)
    assert SeqRange(1, MAX_SEQ_NR).last == MAX_SEQ_NR
    assert SeqRange(4, 4).first == 4
    with pytest.raises(InvalidRange):
        SeqRange(5, 3)
    with pytest.raises(InvalidSeqNr):
        SeqRange(0, 3)
    with pytest.raises(InvalidSeqNr):
        SeqRange(3, MAX_SEQ_NR + 1)


def test_a_position_reads_back_what_it_prints() -> None:
    position = Position("a:b", 3, 42)
    assert Position.parse(str(position)) == position
    for wrong in ("", "orders", "orders:1", "orders:-1:2", "orders:1:x", ":1:2", "orders::2", f"orders:1:{'9' * 5000}"):
        with pytest.raises(InvalidPosition):
            Position.parse(wrong)
    with pytest.raises(InvalidPosition):
        Position("orders", -1, 0)
    with pytest.raises(InvalidPosition):
        Position("orders", 0, -1)


def test_an_id_is_text_of_up_to_4_kib() -> None:
    assert check_id("ü") == b"\xc3\xbc"
    assert check_id("x" * 4096) == b"x" * 4096
    for wrong in ("", "x" * 4097, "ü" * 2049, "\ud800", b"id", None):
        with pytest.raises(InvalidId):
            check_id(wrong)


@pytest.mark.case("kafka-journal", 8)
def test_the_segment_of_an_event() -> None:
    """With segments of 3, seqNrs 1, 3, 4, 7 lie in segments 0, 0, 1, 2; 45629 of segments of 10000 in 4."""
    assert [segment_of(seq_nr, 3) for seq_nr in (1, 3, 4, 7)] == [0, 0, 1, 2]
    assert segment_of(45629, 10_000) == 4
    assert segment_of(MAX_SEQ_NR, 2) == 2**62 - 1


@pytest.mark.parametrize(
    ("journal_id", "hashed"),
    [
        ("id", 3355),
        ("journal id", 969045668),
        ("polygenelubricants", -(2**31)),
        ("user-42", -147182656),
        ("", 0),
        # Outside the basic plane a character is two UTF-16 units: 31 * 0xD83D + 0xDE00.
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
    ],
)
def test_javas_string_hash(journal_id, hashed) -> None:
    assert java_hash(journal_id) == hashed


@pytest.mark.case("kafka-journal", 7)
@pytest.mark.parametrize(
    ("journal_id", "legacy", "segment"),
    [
        ("id", 55, 3355),
        ("ID", 55, 3355),
        ("journal ID", 68, 5668),
        ("polygenelubricants", 48, 3648),
        ("user-42", 56, 2656),
        ("", 0, 0),
    ],
)
def test_the_segment_of_a_head(journal_id, legacy, segment) -> None:
    """Ids that differ only in case share a segment; the smallest hash of all does not become negative."""
    assert head_segment(journal_id) == segment
    assert head_segment(journal_id, LEGACY_HEAD_SEGMENTS) == legacy


@given(st.text())
def test_every_id_has_a_segment(journal_id) -> None:
    assert -(2**31) <= java_hash(journal_id) < 2**31
    assert 0 <= head_segment(journal_id) < HEAD_SEGMENTS


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key, hashed) -> None:
    """The vectors of Kafka's own tests, which it gives as signed 32-bit numbers."""
    found = murmur2(key.encode())
    assert (found - 2**32 if found >= 2**31 else found) == hashed


def test_a_keys_partition_is_that_of_kafkas_partitioner() -> None:
    assert partition_of(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10
    assert partition_of(b"abc", 7) == 479470107 % 7
    assert {partition_of(str(n).encode(), 4) for n in range(50)} == {0, 1, 2, 3}


@pytest.mark.case("kafka-journal", 51)
def test_workers_share_the_head_segments() -> None:
    """Of 20 workers over 100 segments the first takes 0, 20, 40, 60, 80."""
    assert list(segments_of_partition(0, 20, 100)) == [0, 20, 40, 60, 80]


@pytest.mark.case("kafka-journal", 51)
@given(st.integers(1, 60), st.integers(1, 40))
def test_workers_take_each_head_segment_once(partitions, segments) -> None:
    """However many workers and segments there are, together they take each segment exactly once."""
    taken = [s for worker in range(partitions) for s in segments_of_partition(worker, partitions, segments)]
    assert sorted(taken) == list(range(segments))
