"""The value of an append: spec sections 1.5 to 1.7, with its golden bytes."""

from __future__ import annotations

import contextlib
import json
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.codec import (
    NO_METADATA,
    AppendValue,
    EventData,
    PayloadMetadata,
    decode_value,
    encode_headers,
    encode_tags,
    encode_value,
    record_metadata,
    split_metadata,
)
from everlog.core.duration import ExpireAfter
from everlog.core.events import EventRecord
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import MalformedRecord, UnreadableJson
from tests.support import at_depth

GOLDEN_ONE = bytes.fromhex("01000000010000001800000000000000070000000500000001610100000002cafe7b7d")
GOLDEN_FOUR = bytes.fromhex(
    "0100000004000000130000000000000007000000000100000002cafe"
    "000000130000000000000008000000000300000002686900000018"
    "00000000000000090000000002000000077b226b223a317d"
    "00000011000000000000000a000000000000000000"
    "7b226578706972654166746572223a223120646179227d"
)
ONE_DAY = PayloadMetadata(ExpireAfter.parse("1 day"))
FOUR = (
    EventData(7, (), "binary", b"\xca\xfe"),
    EventData(8, (), "text", "hi"),
    EventData(9, (), "json", '{"k":1}'),
    EventData(10),
)


@pytest.mark.case("kafka-journal", 1)
def test_events_without_bytes_are_written_as_json() -> None:
    """Text, JSON and no payload together make a JSON value, with `metadata` even when it is empty."""
    events = (
        EventData(1, ("a",), "text", "hello"),
        EventData(2, (), "json", '{"k":1}'),
        EventData(3),
    )
    payload_type, value = encode_value(events)
    assert payload_type == "json"
    assert json.loads(value) == {
        "events": [
            {"seqNr": 1, "tags": ["a"], "payloadType": "text", "payload": "hello"},
            {"seqNr": 2, "tags": [], "payloadType": "json", "payload": {"k": 1}},
            {"seqNr": 3, "tags": []},
        ],
        "metadata": {},
    }
    assert decode_value("json", value) == AppendValue(events, NO_METADATA)


@pytest.mark.case("kafka-journal", 1)
def test_the_specs_json_value_decodes() -> None:
    """The example of the specification, metadata included."""
    value = b"""{"events":[{"seqNr":1,"tags":["a"],"payloadType":"text","payload":"hello"},
           {"seqNr":2,"tags":[],"payloadType":"json","payload":{"k":1}},
           {"seqNr":3,"tags":[]}],
 "metadata":{"expireAfter":"1 day","data":{"k":"v"}}}"""
    found = decode_value("json", value)
    assert [event.seq_nr for event in found.events] == [1, 2, 3]
    assert [event.data for event in found.events] == ["hello", '{"k":1}', None]
    assert found.metadata == PayloadMetadata(ExpireAfter.parse("1 day"), '{"k":"v"}')


@pytest.mark.case("kafka-journal", 2)
def test_one_binary_event_makes_the_whole_value_binary() -> None:
    """Both golden vectors hold, to the byte, in both directions."""
    one = (EventData(7, ("a",), "binary", b"\xca\xfe"),)
    assert encode_value(one) == ("binary", GOLDEN_ONE)
    assert decode_value("binary", GOLDEN_ONE) == AppendValue(one, NO_METADATA)
    assert encode_value(FOUR, ONE_DAY) == ("binary", GOLDEN_FOUR)
    assert decode_value("binary", GOLDEN_FOUR) == AppendValue(FOUR, ONE_DAY)


@pytest.mark.case("kafka-journal", 3)
@pytest.mark.parametrize("version", [0, 2, 7, 255])
def test_other_versions_have_no_metadata(version) -> None:
    """A first byte of 0, or one that nobody knows: the events are read, the rest is not metadata."""
    value = bytes([version]) + GOLDEN_FOUR[1:]
    assert decode_value("binary", value) == AppendValue(FOUR, NO_METADATA)
    without = bytes([version]) + GOLDEN_FOUR[1 : GOLDEN_FOUR.rindex(b"{")]
    assert decode_value("binary", without).metadata == NO_METADATA


@pytest.mark.parametrize(
    "rest",
    [b"", b"\xff", b"{", b"[]", b'"text"', b'{"expireAfter":"test"}', b'{"expireAfter":1.5,"data":{"k":"v"}}'],
)
def test_metadata_that_cannot_be_read_behind_binary_events_is_none(rest) -> None:
    """kafka-journal then takes the value for one of before there was metadata; in a JSON value it is an error there."""
    assert decode_value("binary", GOLDEN_ONE[:-2] + rest) == decode_value("binary", GOLDEN_ONE)


EXPIRING = bytes.fromhex(
    "0100000001000000180000000000000007000000050000000161010000000"
    "2cafe7b226578706972654166746572223a22312e3520686f757273227d"
)


@pytest.mark.case("kafka-journal", 9)
def test_durations_that_kafka_journal_reads() -> None:
    """With fractions, and before zero; written they are whole numbers of a finer unit, as there."""
    assert decode_value("binary", EXPIRING).metadata == PayloadMetadata(ExpireAfter.parse("90 minutes"))
    for text, written in (("1.5 hours", "90 minutes"), ("-1 day", "-1 days"), (".5s", "500 milliseconds")):
        value = b'{"events":[{"seqNr":1,"tags":[]}],"metadata":{"expireAfter":"%s"}}'
        metadata = decode_value("json", value % text.encode()).metadata
        assert encode_value((EventData(1),), metadata) == ("json", value % written.encode())


@pytest.mark.parametrize(("value", "events"), [(GOLDEN_ONE, GOLDEN_ONE[:-2]), (GOLDEN_FOUR, GOLDEN_FOUR[:-23])])
def test_binary_events_cut_short_are_never_taken_for_whole_ones(value, events) -> None:
    for size in range(len(events)):
        with pytest.raises(MalformedRecord):
            decode_value("binary", value[:size])
    assert decode_value("binary", events).metadata == NO_METADATA


def test_a_json_value_cut_short_is_never_taken_for_a_whole_one() -> None:
    _, value = encode_value((EventData(1, ("a",), "text", "hello"), EventData(2, (), "json", "17")))
    for size in range(len(value)):
        with pytest.raises(MalformedRecord):
            decode_value("json", value[:size])


@pytest.mark.parametrize(
    "value",
    [
        b"\x01\x00\x00\x00\x00{}",  # no events
        b"\x01\xff\xff\xff\xff{}",  # less than none
        b"\x01\x7f\xff\xff\xff{}",  # more than there are
        GOLDEN_ONE.replace(b"\x00\x00\x00\x18", b"\xff\xff\xff\xf0"),  # an event of negative size
        GOLDEN_ONE.replace(struct.pack(">q", 7), struct.pack(">q", 0)),  # seqNr 0
        GOLDEN_ONE.replace(struct.pack(">q", 7), struct.pack(">q", -1)),
        GOLDEN_ONE.replace(b"a\x01", b"a\x04"),  # an unknown kind of payload
        GOLDEN_ONE.replace(b"a\x01", b"\xff\x01"),  # a tag that is no text
        GOLDEN_FOUR.replace(b"hi", b"\xff\xff"),  # a text that is none
        GOLDEN_FOUR.replace(b'{"k":1}', b'{"k":1)'),  # JSON that is none
    ],
)
def test_a_malformed_binary_value_is_an_error(value) -> None:
    with pytest.raises(MalformedRecord):
        decode_value("binary", value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"17",
        b"{}",
        b'{"events":[]}',
        b'{"events":[{}]}',
        b'{"events":[{"seqNr":0}]}',
        b'{"events":[{"seqNr":9223372036854775808}]}',
        b'{"events":[{"seqNr":"1"}]}',
        b'{"events":[{"seqNr":1,"payloadType":"text","payload":17}]}',
        b'{"events":[{"seqNr":1,"payloadType":"text"}]}',
        b'{"events":[{"seqNr":1,"payloadType":"xml","payload":"<a/>"}]}',
        b'{"events":[{"seqNr":1,"payload":"\xff"}]}',
        b'{"events":[{"seqNr":1}],"metadata":[1]}',
        b'{"events":[{"seqNr":1}],"metadata":{"expireAfter":"test"}}',
    ],
)
def test_a_malformed_json_value_is_an_error(value) -> None:
    with pytest.raises(MalformedRecord):
        decode_value("json", value)


def test_what_older_writers_leave_out() -> None:
    """No metadata, no tags, and a payload without its type, which then is JSON."""
    found = decode_value("json", b'{"events":[{"seqNr":4,"payload":{"a":[1, 2]}}]}')
    assert found == AppendValue((EventData(4, (), "json", '{"a":[1, 2]}'),), NO_METADATA)


seq_nrs = st.integers(1, MAX_SEQ_NR)
tags = st.lists(st.text(), max_size=3).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)
plain_events = st.one_of(
    st.builds(EventData, seq_nrs, tags),
    st.builds(EventData, seq_nrs, tags, st.just("text"), st.text()),
    st.builds(EventData, seq_nrs, tags, st.just("json"), json_values.map(json.dumps)),
)
binary_events = st.builds(EventData, seq_nrs, tags, st.just("binary"), st.binary())
metadata = st.builds(
    PayloadMetadata,
    st.none() | st.integers(1, 2**60).map(ExpireAfter),
    st.none() | st.dictionaries(st.text(), json_values, max_size=3).map(json.dumps),
)


@given(st.lists(plain_events, min_size=1, max_size=5).map(tuple), metadata)
def test_json_values_round_trip(events, metadata) -> None:
    payload_type, value = encode_value(events, metadata)
    assert payload_type == "json"
    assert decode_value("json", value) == AppendValue(events, metadata)


@given(st.lists(plain_events | binary_events, max_size=4), binary_events, st.lists(plain_events, max_size=2), metadata)
def test_binary_values_round_trip(before, binary, after, metadata) -> None:
    events = (*before, binary, *after)
    payload_type, value = encode_value(events, metadata)
    assert payload_type == "binary"
    assert decode_value("binary", value) == AppendValue(events, metadata)


@given(st.lists(plain_events, max_size=2), binary_events, metadata, st.data())
def test_every_cut_of_binary_events_is_noticed(before, binary, metadata, data) -> None:
    _, value = encode_value((*before, binary), metadata)
    _, events = encode_value((*before, binary))
    size = data.draw(st.integers(0, len(events) - len("{}") - 1))
    with pytest.raises(MalformedRecord):
        decode_value("binary", value[:size])


@given(st.sampled_from(["json", "binary"]), st.binary())
def test_noise_gives_events_or_the_named_error(payload_type, value) -> None:
    with contextlib.suppress(MalformedRecord):
        assert decode_value(payload_type, value).events


def _row(metadata_json: str) -> EventRecord:
    return EventRecord(1, 0, 0, 0, None, None, metadata_json=metadata_json)


def test_the_metadata_column() -> None:
    """Header and payload metadata stand side by side; the older shape is the header's alone."""
    assert json.loads(record_metadata('{"a":1}', PayloadMetadata(ExpireAfter.parse("1 day"), "[2]"))) == {
        "header": {"data": {"a": 1}},
        "payload": {"expireAfter": "1 day", "data": [2]},
    }
    assert json.loads(record_metadata(None, ONE_DAY)) == {"header": {}, "payload": {"expireAfter": "1 day"}}
    assert record_metadata(None, NO_METADATA) == ""
    empty = {"header": {}, "payload": {}}
    assert _row("").metadata == empty
    assert _row("{}").metadata == empty
    assert _row('{"data":{"k":"v"}}').metadata == {"header": {"data": {"k": "v"}}, "payload": {}}
    assert _row('{"header":{"data":1},"payload":{}}').metadata == {"header": {"data": 1}, "payload": {}}
    assert _row('{"payload":{"data":1}}').metadata == {"header": {}, "payload": {"data": 1}}


def test_tags_and_headers_of_a_row() -> None:
    assert encode_tags(("b", "a", "b")) == '["a","b"]'
    assert encode_tags(()) == ""
    # Of a repeated name the last one counts.
    assert json.loads(encode_headers((("x", b"1"), ("y", b"2"), ("x", b"3")))) == {"x": "3", "y": "2"}
    assert encode_headers(()) == ""


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "{}",
        "[]",
        '{"data":{"k":"v"}}',
        '{"header":{"data":1}}',
        '{"payload":{"data":[1.10],"expireAfter":"1 day"}}',
    ],
)
def test_the_metadata_column_says_again_what_the_record_said(metadata) -> None:
    header, payload = split_metadata(metadata)
    shown = _row(metadata).metadata
    assert (header is None, payload.data is None) == ("data" not in shown["header"], "data" not in shown["payload"])
    assert split_metadata(record_metadata(header, payload)) == (header, payload)
    assert _row(record_metadata(header, payload)).metadata == shown


@pytest.mark.parametrize("kind", ["json", "binary"])
@pytest.mark.parametrize("room", [1000, 60])
@pytest.mark.parametrize("levels", [10, 128, 940, 20_000])
def test_json_is_carried_however_deep_it_is(kind, levels, room) -> None:
    """Payloads and metadata of users stay text, and no stack is needed to tell them from broken ones."""
    deep = "[" * levels + '{"a": 1.10}' + "]" * levels
    events = (EventData(1, ("t",), "json", deep), EventData(2, (), "text", "[["), EventData(3))
    if kind == "binary":
        events += (EventData(4, (), "binary", b"{"),)
    metadata = PayloadMetadata(ExpireAfter.parse("1 day"), deep)
    _, value = encode_value(events, metadata)
    assert at_depth(room, lambda: decode_value(kind, value)) == AppendValue(events, metadata)
    column = record_metadata(deep, metadata)
    assert at_depth(room, lambda: split_metadata(column)) == (deep, metadata)
    with pytest.raises(MalformedRecord):
        at_depth(room, lambda: decode_value(kind, value.replace(b"]]", b"]}", 1)))


def test_what_is_too_deep_for_python_is_an_error_for_who_looks() -> None:
    """At the same depth on every stack: two levels of the column are ours."""
    for levels, readable in ((128, True), (129, False), (940, False), (20_000, False)):
        row = _row('{"header":{"data":%s},"payload":{}}' % ("[" * levels + "]" * levels))
        for room in (1000, 250):
            if readable:
                at_depth(room, lambda row=row: row.metadata)
                continue
            with pytest.raises(UnreadableJson, match="metadata_json"):
                at_depth(room, lambda row=row: row.metadata)
    for payload in ("[" * 5000 + "]" * 5000, "[1e999", "nan"):
        with pytest.raises(UnreadableJson):
            _ = EventRecord(1, 0, 0, 0, "json", payload).payload


def test_a_number_that_no_float_can_hold_is_a_decimal() -> None:
    """Documents keep such numbers, and their events carry them."""
    assert EventRecord(1, 0, 0, 0, "json", "[1e999, 1.5, -1E+400]").payload == [
        Decimal("1e999"),
        1.5,
        Decimal("-1e400"),
    ]
