"""The header `journal.action` and the record around it: spec sections 1.3 and 1.4."""

from __future__ import annotations

import json
from datetime import date

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog import Event
from everlog.core.actions import (
    ActionRange,
    Append,
    Copied,
    Delete,
    Expected,
    Mark,
    Purge,
    Resume,
    decode_action,
    encode_action,
    wrap_header_data,
)
from everlog.core.entry import decode
from everlog.core.record import Record
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import MalformedRecord
from everlog.testing.replication import replicate
from tests.support import START_MS, append_record, at_depth, broken_record, foreign_record, produce_raw

LIFE = "0f61d3a5-0d9c-4f7b-9d5b-5a8c4a0b7a11"


@pytest.mark.parametrize(
    ("action", "header"),
    [
        (
            Append(
                range=ActionRange(3, 5),
                origin="h1",
                version="1.0",
                payload_type="json",
                metadata=wrap_header_data('{"k":"v"}'),
            ),
            b'{"append":{"range":{"from":3,"to":5},"origin":"h1","version":"1.0","payloadType":"json",'
            b'"metadata":{"data":{"k":"v"}}}}',
        ),
        (
            Append(range=ActionRange(1, 1), payload_type="binary", metadata=wrap_header_data(None)),
            b'{"append":{"range":{"from":1,"to":1},"payloadType":"binary","metadata":{}}}',
        ),
        (Delete(to=3, origin="h1", version="1.0"), b'{"delete":{"to":3,"origin":"h1","version":"1.0"}}'),
        (Purge(), b'{"purge":{}}'),
        (Mark(id="5e1f"), b'{"mark":{"id":"5e1f"}}'),
        # Everlog's own additions are optional fields of the same objects.
        (Delete(to=3, if_exists=True), b'{"delete":{"to":3,"ifExists":true}}'),
        (Delete(to=3, only_life=LIFE), b'{"delete":{"to":3,"onlyLife":"%b"}}' % LIFE.encode()),
        (Purge(expire_on=date(2024, 2, 29)), b'{"purge":{"expireOn":"2024-02-29"}}'),
        (
            Purge(expire_on=date(2024, 2, 29), expire_at=1_709_200_000_000),
            b'{"purge":{"expireOn":"2024-02-29","expireAt":1709200000000}}',
        ),
        (
            Delete(to=3, copied=Copied(expire_after="1 day", expire_on=date(2024, 2, 29), expire_at=1_709_200_000_000)),
            b'{"delete":{"to":3,"copied":{"expireAfter":"1 day","expireOn":"2024-02-29","expireAt":1709200000000}}}',
        ),
        (Resume(skip=("4f", "07")), b'{"resume":{"skip":["4f","07"]}}'),
        (
            Append(
                range=ActionRange(2, 2),
                payload_type="json",
                metadata=wrap_header_data(None),
                expected=Expected(1, "life"),
                id="2.x",
            ),
            b'{"append":{"range":{"from":2,"to":2},"payloadType":"json","metadata":{},'
            b'"expected":{"seqNr":1,"recordId":"life"},"id":"2.x"}}',
        ),
    ],
)
def test_headers_to_the_byte(action, header) -> None:
    assert encode_action(action) == header
    assert decode_action(header) == action


@pytest.mark.case("kafka-journal", 4)
@pytest.mark.parametrize("metadata", ["", ',"metadata":null', ',"metadata":17', ',"metadata":[]', ',"metadata":"x"'])
def test_an_append_without_metadata_has_empty_metadata(metadata) -> None:
    """Older writers leave the metadata out, or write something that is no object: no error, no metadata."""
    header = b'{"append":{"range":{"from":1,"to":5},"payloadType":"json"%s}}' % metadata.encode()
    action = decode_action(header)
    assert isinstance(action, Append)
    assert action.range == ActionRange(1, 5)
    assert action.header_data is None


@pytest.mark.case("kafka-journal", 5)
@pytest.mark.parametrize("header", [b"{}", b'{"new":{}}', b'{"append":null}', b'{"appendix":{"range":1}}'])
def test_a_header_with_none_of_the_names_is_no_action(header) -> None:
    """Somebody's newer action is not ours to fail on."""
    assert decode_action(header) is None


def test_the_names_are_tried_in_order() -> None:
    """Append, mark, delete, purge: the first that is there counts, whatever the others hold."""
    append = '"append":{"range":{"from":1,"to":2},"payloadType":"json"}'
    assert isinstance(decode_action(b'{"purge":{},"delete":{"to":1},"mark":{"id":"m"},%s}' % append.encode()), Append)
    assert isinstance(decode_action(b'{"purge":{},"delete":{"to":1},"mark":{"id":"m"}}'), Mark)
    assert isinstance(decode_action(b'{"purge":{},"delete":{"to":1}}'), Delete)
    assert isinstance(decode_action(b'{"resume":{},"purge":{}}'), Purge)
    # What stands behind the first name may be broken.
    assert isinstance(decode_action(b'{"delete":17,"mark":{"id":"m"}}'), Mark)
    with pytest.raises(MalformedRecord):
        decode_action(b'{"mark":17,"delete":{"to":1}}')


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"17",
        b"[]",
        b"{",
        b'{"append":{}}',
        b'{"append":[]}',
        b'{"append":{"range":{"from":1},"payloadType":"json"}}',
        b'{"append":{"range":{"from":1,"to":2}}}',
        b'{"append":{"range":{"from":1,"to":2},"payloadType":"xml"}}',
        b'{"append":{"range":{"from":0,"to":2},"payloadType":"json"}}',
        b'{"append":{"range":{"from":5,"to":3},"payloadType":"json"}}',
        b'{"append":{"range":{"from":1,"to":9223372036854775808},"payloadType":"json"}}',
        b'{"delete":{}}',
        b'{"delete":{"to":0}}',
        b'{"delete":{"to":"3"}}',
        b'{"mark":{}}',
        b'{"mark":{"id":"\xff"}}',
        b'{"purge":{"expireOn":"yesterday"}}',
        b'{"purge":{"expireAt":"yesterday"}}',
        b'{"purge":{"expireAt":9223372036854775808}}',
        b'{"resume":{"skip":4}}',
    ],
)
def test_a_header_that_is_there_but_malformed_is_an_error(header) -> None:
    with pytest.raises(MalformedRecord):
        decode_action(header)


@pytest.mark.parametrize("seq_nr", [-1, MAX_SEQ_NR + 1, 10**30])
def test_an_expectation_beyond_every_seq_nr_is_malformed(seq_nr) -> None:
    """No table could hold such a number: unnoticed, it would stop the pipeline and not just its journal."""
    append = {"range": {"from": 1, "to": 1}, "payloadType": "json", "expected": {"seqNr": seq_nr}}
    with pytest.raises(MalformedRecord):
        decode_action(json.dumps({"append": append}).encode())


@pytest.mark.parametrize("room", [1000, 60])
@pytest.mark.parametrize("levels", [10, 128, 940, 20_000])
def test_metadata_is_carried_however_deep_it_is(levels, room) -> None:
    """What the user gave stays text; the answer does not depend on how much of the stack is used already."""
    deep = b"[" * levels + b'{"]": "\\\\\\"["}' + b"]" * levels
    header = b'{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":{"x":[[]],"data": %b }}}' % deep
    action = at_depth(room, lambda: decode_action(header))
    assert isinstance(action, Append)
    assert at_depth(room, lambda: action.header_data) == deep.decode()
    for wrong in (deep[:-1], deep + b"]", deep.replace(b"]]", b"]}", 1), deep.replace(b'{"', b'{1,"')):
        broken = header.replace(deep, wrong)
        with pytest.raises(MalformedRecord):
            at_depth(room, lambda broken=broken: decode_action(broken))


def test_a_purge_beside_something_deep_is_a_purge() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    assert decode_action(b'{"purge":{"x":%b},"y":%b}' % (deep, deep)) == Purge()
    with pytest.raises(MalformedRecord):
        decode_action(b'{"mark":{"id":%b}}' % deep)


@given(st.binary())
def test_noise_gives_an_action_nothing_or_the_named_error(header) -> None:
    try:
        action = decode_action(header)
    except MalformedRecord:
        return
    assert action is None or decode_action(encode_action(action)) == action


texts = st.none() | st.text()
actions = st.one_of(
    st.builds(
        Append,
        range=st.tuples(st.integers(1, 2**62), st.integers(0, 2**62 - 1)).map(lambda r: ActionRange(r[0], r[0] + r[1])),
        origin=texts,
        version=texts,
        payload_type=st.sampled_from(["json", "binary"]),
        metadata=(st.just({}) | st.dictionaries(st.text(), st.integers(-5, 5), max_size=2)).map(
            lambda found: msgspec.Raw(msgspec.json.encode(found))
        ),
        expected=st.none() | st.builds(Expected, st.integers(0, MAX_SEQ_NR), texts),
        id=texts,
        life=st.none() | st.uuids().map(str),
    ),
    st.builds(Delete, st.integers(1, MAX_SEQ_NR), texts, texts, st.booleans()),
    st.builds(Purge, texts, texts, st.none() | st.dates()),
    st.builds(Mark, st.text(), texts, texts),
    st.builds(Resume, st.lists(st.text(), max_size=3).map(tuple), texts, texts),
)


@given(actions)
def test_actions_round_trip(action) -> None:
    header = encode_action(action)
    assert decode_action(header) == action
    (body,) = json.loads(header).values()
    assert None not in body.values(), "absent fields are left out"


@pytest.mark.case("kafka-journal", 5)
def test_records_that_are_not_for_us_mean_nothing() -> None:
    """Without key, without action, with a foreign action, or an append without value: neither action nor error."""
    append = append_record(0, 1)
    for record in (
        foreign_record(0),
        msgspec.structs.replace(append, key=None),
        msgspec.structs.replace(append, value=None),
        msgspec.structs.replace(append, action=b'{"new":{}}'),
    ):
        entry = decode(record)
        assert entry.action is None
        assert entry.error is None
    assert decode(append).action is not None
    assert "cannot" in (decode(msgspec.structs.replace(append, value=b"{")).error or "")
    assert decode(broken_record(0)).error is not None


async def produced(log) -> Record:
    """The newest record of the journal `k`, as the log holds it."""
    ref = await log.journal("orders").ref("k")
    records = await log.parts.log.tail(ref.log_topic, ref.partition, b"k", after=-1, before=2**62, limit=100)
    return records[-1]


@pytest.mark.case("kafka-journal", 1)
async def test_an_append_of_text_json_and_nothing_is_one_json_record(small_log) -> None:
    """Header with payloadType json and the range 1 to 3, key in UTF-8, value with `metadata: {}`."""
    await small_log.journal("orders").append("k", [Event("a", tags={"t"}), Event({"b": 1}), Event()])
    record = await produced(small_log)
    action = json.loads(record.action)["append"]
    assert (action["payloadType"], action["range"], action["metadata"]) == ("json", {"from": 1, "to": 3}, {})
    assert json.loads(record.value) == {
        "events": [
            {"seqNr": 1, "tags": ["t"], "payloadType": "text", "payload": "a"},
            {"seqNr": 2, "tags": [], "payloadType": "json", "payload": {"b": 1}},
            {"seqNr": 3, "tags": []},
        ],
        "metadata": {},
    }
    assert record.timestamp == START_MS


@pytest.mark.case("kafka-journal", 2)
async def test_an_append_with_bytes_is_one_binary_record(small_log) -> None:
    """The golden bytes, made by the API: seqNr 7, tag a, payload CAFE."""
    await small_log.journal("orders").append(
        "k", [Event(b"\xca\xfe", tags={"a"}, seq_nr=7)], headers={"h": "1"}, header_metadata={"m": 2}
    )
    record = await produced(small_log)
    action = json.loads(record.action)["append"]
    assert (action["payloadType"], action["metadata"]) == ("binary", {"data": {"m": 2}})
    assert record.value.hex() == "01000000010000001800000000000000070000000500000001610100000002cafe7b7d"
    assert record.headers == (("h", b"1"),)


async def test_the_other_actions_have_no_value(small_log) -> None:
    orders = small_log.journal("orders")
    await orders.append("k", [Event(1), Event(2)])
    await orders.delete("k", to=9)
    deleted = await produced(small_log)
    await orders.mark("k", "m1")
    marked = await produced(small_log)
    await orders.purge("k")
    purged = await produced(small_log)
    # A delete says no more than there is, and does nothing where nothing is.
    assert decode_action(deleted.action).to == 2
    assert decode_action(deleted.action).if_exists
    assert decode_action(marked.action).id == "m1"
    assert isinstance(decode_action(purged.action), Purge)
    assert [record.value for record in (deleted, marked, purged)] == [None] * 3


@pytest.mark.case("kafka-journal", 5)
async def test_the_pointer_passes_records_that_are_not_for_us(small_log) -> None:
    """They change no table but pointer2, which moves past them."""
    strangers = [
        Record(0, 0, 0, None, b'{"purge":{}}', None),
        Record(0, 0, 0, b"k", None, b"value"),
        Record(0, 0, 0, b"k", b'{"new":{}}', None),
        Record(0, 0, 0, b"k", b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', None),
    ]
    for record in strangers:
        await produce_raw(small_log, "orders", record)
    (applied,) = await replicate(small_log)
    assert (applied.journals, applied.quarantined) == (0, 0)
    assert await small_log.parts.store.pointers("journal-orders") == {0: 3}
    assert await small_log.parts.store.head("journal-orders", "k") is None
