"""Large JSON that is decoded in slices is what it is when it is decoded at once, and nothing else is refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.documents import sliced_json
from everlog.documents.bodies import MAX_DEPTH, decode_body, encode_body
from everlog.documents.sliced_json import decode_sliced
from everlog.errors import InvalidDocument

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(alphabet='ab"\\,[]{}:\u2028é ', max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text('ab"\\,[]{}', max_size=3), inner, max_size=6),
    max_leaves=40,
)


def at_once(data: bytes, levels: int = 0) -> Any:
    return msgspec.json.decode(data)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(sliced_json, "SLICE_BYTES", 8)


def outcome(decode: Any, data: bytes) -> Any:
    """What comes out; None if it is refused."""
    try:
        return [decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def sliced(data: bytes) -> Any:
    return decode_sliced(data, at_once, max_depth=1000)


@given(values, st.sampled_from([0, 1]), st.randoms())
def test_the_same_comes_out(value, indent, chance):
    data = msgspec.json.format(msgspec.json.encode(value), indent=indent)
    assert sliced(data) == at_once(data)
    broken = bytearray(data)
    for _ in range(3):
        at = chance.randrange(len(broken) + 1)
        change = chance.choice([b",", b"[", b"]", b"{", b"}", b'"', b":", b"1", b" ", b"\\", b""])
        broken[at : at + chance.randrange(2)] = change
    assert outcome(sliced, bytes(broken)) == outcome(at_once, bytes(broken)), bytes(broken)


def test_many_random_changes_are_refused_alike():
    chance = random.Random(7)
    text = (
        b'{"a": [1, {"b": "x,]", "c": [[], {}, [1, 2, 3]]}, 4], "d\\\\\\"": {"e": [[1, 2], [3, 4], [5, 6]]}, "a": []}'
    )
    assert sliced(text) == at_once(text)
    for _ in range(20_000):
        broken = bytearray(text)
        for _ in range(chance.randrange(1, 3)):
            at = chance.randrange(len(broken))
            broken[at : at + chance.randrange(3)] = bytes(chance.choices(b',[]{}":1 \\', k=chance.randrange(3)))
        data = bytes(broken)
        assert outcome(sliced, data) == outcome(at_once, data), data


def test_levels_are_counted_as_in_small_bodies():
    for inside, fits in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False)):
        text = '{"a":' * inside + "[1," + "22222222," * 3 + "3]" + "}" * inside
        for data in ("[" * inside + "1" + "]" * inside, "[0," * inside + '"' + "x" * 50 + '"' + "]" * inside):
            if fits:
                assert encode_body(decode_body(data)) == data
            else:
                with pytest.raises(InvalidDocument):
                    decode_body(data)
        with pytest.raises(InvalidDocument):
            decode_body(text if not fits else "[" + text + "]")
