"""Blocks of records: what goes in comes out, within their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.core.record import Record, pack_headers
from everlog.log.sqlite import stream as module
from everlog.log.sqlite.stream import MAX_BLOCK_RECORDS, blocks, decode_block, encode_block

optional_bytes = st.none() | st.binary(max_size=50)
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)


@given(st.lists(st.tuples(st.integers(0, 2**40), optional_bytes, optional_bytes, optional_bytes, headers), max_size=30))
def test_records_survive_the_way(found) -> None:
    """Every field, absent ones and headers included, comes out as it went in."""
    rows = [
        (3, at, time, key, action, value, pack_headers(h)) for at, (time, key, action, value, h) in enumerate(found)
    ]
    records = [Record(3, at, time, key, action, value, h) for at, (time, key, action, value, h) in enumerate(found)]
    assert decode_block(encode_block(rows)) == records


def row(offset: int, size: int):
    return (0, offset, 1, b"k", b"{}", b"x" * size, None)


def test_a_block_is_bounded_in_records() -> None:
    rows = [row(offset, 1) for offset in range(2 * MAX_BLOCK_RECORDS + 1)]
    found = list(blocks(rows))
    assert [len(block) for block in found] == [MAX_BLOCK_RECORDS, MAX_BLOCK_RECORDS, 1]
    assert [one for block in found for one in block] == rows


def test_a_block_is_bounded_in_bytes(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 100)
    rows = [row(offset, 60) for offset in range(5)]
    assert [len(block) for block in blocks(rows)] == [2, 2, 1]
