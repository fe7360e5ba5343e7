"""The scalars of documents: paths, ids, bodies, entity tags, the order of values."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.documents.bodies import body_of, decode_body, encode_body, merge, patch_between, same, without_nulls
from everlog.documents.ids import ALPHABET, TransactionId, is_generated, next_id, time_of, time_uuid
from everlog.documents.model import Preconditions
from everlog.documents.order import (
    SortItem,
    compare_keys,
    complete,
    cut,
    encode_directed,
    index_key,
    key_of,
    keys_of,
    parse_sort,
)
from everlog.documents.paths import DocumentPlace, parse_collection, parse_path, partition_of_uri, quantum_of
from everlog.errors import InvalidDocument

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.decimals(-100, 100, places=3) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("path", "uri", "item", "kind"),
    [
        ("abc", "abc", "", "document"),
        ("abc/~xyz", "abc/~xyz", "", "document"),
        ("a~b", "a~b", "", "document"),
        ("abc/xyz~", "abc/xyz~", "", "collection"),
        ("abc~/1", "abc~", "1", "element"),
        ("abc~/1/2", "abc~/1/2", "", "document"),
        ("x~/y~", "x~", "y~", "element"),
    ],
)
@pytest.mark.case("hyperstorage", 36)
def test_what_a_path_names(path, uri, item, kind):
    place = parse_path(path)
    assert (place.uri, place.item, place.kind, place.path) == (uri, item, kind, path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "a\tb",
        "a\nb",
        "a\x7f",
        "a\x85b",
        "x" * 1025,
        "c~/" + "x" * 256,
        "\ud800",
        ".",
        "..",
        "a/./b",
        "../a",
        "a/..",
        "c~/.",
        "c~/..",
        "a\u2028b",
        "a\u202eb",
        "a\u2066b",
        "\ufeffa",
        "a\ufffe",
        "a\U0010ffff",
        "ä" * 513,
        "c~/" + "ä" * 128,
        "\0",
        5,
        None,
        b"a",
    ],
)
@pytest.mark.case("hyperstorage", 11)
def test_what_is_no_path(path):
    with pytest.raises(InvalidDocument) as caught:
        parse_path(path)
    assert caught.value.code in ("invalid-path", "path-too-long")


@pytest.mark.case("hyperstorage", 52)
def test_a_collection_ends_with_a_tilde():
    assert parse_collection("a/b~") == "a/b~"
    for path in ("a", "b~/1"):
        with pytest.raises(InvalidDocument):
            parse_collection(path)


@pytest.mark.case("hyperstorage", 63)
def test_partitions_are_those_of_the_original():
    """CRC32 of the uri, modulo 1024: rows that exist are found."""
    found = [
        partition_of_uri(uri) for uri in ("abc/123", "abc~", "collection-1~", "test-resource-1", "abcde", "document")
    ]
    assert found == [587, 107, 229, 610, 101, 630]


@given(st.lists(st.tuples(st.integers(0, 10**14), st.integers(0, 2**128)), min_size=2, max_size=30))
def test_generated_ids_grow_whatever_the_clock_does(steps):
    """Each id is bytewise above the one before it: over restarts, steps back of the clock and full counters."""
    last = None
    for now_ms, entropy in steps:
        new = next_id(now_ms, entropy, last)
        assert is_generated(new)
        assert last is None or new.encode() > last.encode()
        last = new


@given(st.integers(0, 10**14), st.integers(0, 2**136))
def test_an_id_is_time_counter_and_chance_to_the_base_of_64(now_ms, entropy):
    """Digit by digit, the highest first: ids that other versions made sort among these."""
    number = 0
    for character in next_id(now_ms, entropy):
        number = number * 64 + ALPHABET.index(character)
    time, counter, chance = now_ms // 10_000 % 64**5, entropy % 65536, entropy // 65536 % 64**20
    assert number == (time * 64**5 + counter) * 64**20 + chance


def test_a_full_counter_carries_into_the_time():
    full = next_id(10_000, 0)[:5] + "zzzzz" + "-" * 20
    assert next_id(10_000, 5, full).encode() > full.encode()


@given(st.integers(0, 2**42), st.integers(0, 2**128), st.integers(1, 2**62))
def test_a_transaction_is_found_by_its_id(now_ms, entropy, revision):
    """The quantum comes from the UUID: a minute that ends between two looks at the clock loses nothing."""
    made = TransactionId("a:b/c~", time_uuid(now_ms, entropy), revision)
    assert TransactionId.parse(str(made)) == made
    assert made.uuid.version == 1
    assert time_of(made.uuid) == now_ms
    assert made.quantum == quantum_of(now_ms)


@pytest.mark.parametrize("text", ["", "a", "a:b:1", "a:00000000-0000-1000-8000-000000000000:0", ":x:1"])
def test_what_is_no_transaction_id(text):
    with pytest.raises(InvalidDocument):
        TransactionId.parse(text)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": None, "z": 3}}, {"a": {"x": 1, "z": 3}}),
        ({"l": [1, 2]}, {"l": [3]}, {"l": [3]}),
        ({"a": {"x": 1}, "k": 1}, {"a": None}, {"k": 1}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"x": None, "y": 1}}, {"a": {"y": 1}}),
        ({"a": "b"}, {}, {"a": "b"}),
        ([1], {"a": None}, {}),
    ],
)
@pytest.mark.case("hyperstorage", 18, 19)
def test_merge_patches(target, patch, result):
    assert merge(target, patch) == result


@given(json_values, json_values)
def test_the_patch_between_two_bodies_leads_from_one_to_the_other(old, new):
    old, new = without_nulls(old), without_nulls(new)
    assert same(merge(old, patch_between(old, new)), new) or new is None


@given(json_values)
def test_bodies_come_back_exactly(value):
    assert same(decode_body(encode_body(value)), value)
    assert same(body_of(value), value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"nul", b'{"a":1}x', b"\xff", b'"\xff"', b"[" * 10_000, b"[" * 200 + b"]" * 200, b"1" * 10_000,
     b"1." + b"1" * 10_000, b"1e99999", b"NaN", b"1e999999999999999999999999"],
)  # fmt: skip
@pytest.mark.case("hyperstorage", 13)
def test_what_is_no_body(data):
    with pytest.raises(InvalidDocument) as caught:
        decode_body(data)
    assert caught.value.code == "invalid-json"


def test_nulls_go_but_not_from_arrays():
    assert without_nulls({"a": None, "b": {"c": None}, "d": [None, {"e": None}]}) == {"b": {}, "d": [None, {"e": None}]}


IN_ORDER = [
    *(None, False, True),
    *(Decimal("-1e20"), -100, Decimal("-10.5"), -10, -9, Decimal("-0.01"), 0, Decimal("0.001"), Decimal("0.01")),
    *(Decimal("0.1"), 1, 9, 10, Decimal("10.5"), 99, 100, 10**30),
    *("", "\0", "\0\0", "\0a", "\x01", "a", "a\0", "a\0\0", "a\0b", "a\x01", "aa", "ab", "b", "\u00ff", "\uffff"),
    "\U00010000",
]


@pytest.mark.parametrize("descending", [False, True])
def test_every_pair_of_odd_values_sorts_as_bytes(descending):
    """Before random values: signs, exponents, zeros inside and at the end of texts, and all types."""
    keys = [encode_directed(key_of(value), descending=descending) for value in IN_ORDER]
    assert sorted(keys, reverse=descending) == keys
    assert len(set(keys)) == len(keys)
    for one in keys:
        assert not any(other.startswith(one) for other in keys if other != one)
        assert one[0] != 255
    assert key_of(1) == key_of(Decimal("1.00"))
    assert len({encode_directed(key_of(one), descending=descending) for one in (1, Decimal("1.00"))}) == 1
    assert encode_directed(key_of(0), descending=False) == encode_directed(key_of(Decimal("-0.0")), descending=False)


@given(json_values, json_values, st.booleans())
def test_bytes_sort_as_values_do(left, right, descending):
    """An index in byte order is the collection in the order of the values, and equal values share their bytes."""
    one, other = key_of(left), key_of(right)
    left_bytes, right_bytes = (encode_directed(key, descending=descending) for key in (one, other))
    assert (left_bytes < right_bytes) == ((one > other) if descending else (one < other))
    assert (left_bytes == right_bytes) == (one == other) == same(left, right)
    assert not left_bytes.startswith(right_bytes) or left_bytes == right_bytes


@given(json_values, json_values, st.booleans())
def test_a_cut_parts_the_values_before_a_bound_from_the_others(value, at, descending):
    key, bound = key_of(value), key_of(at)
    for one in (bound, (bound[0],), (*bound, 0), (bound[0] + 1,)):
        encoded = encode_directed(key, descending=descending) + b"\x30more"
        edge = cut(one, descending=descending)
        assert (key < one) == ((encoded >= edge) if descending else (encoded < edge))


@given(
    st.tuples(*[st.fixed_dictionaries({"id": st.text("ab", min_size=1), "a": json_values, "b": json_values})] * 2),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_index_keys_sort_as_elements_do(pair, first, second):
    sort = complete([SortItem(("a",), first), SortItem(("b",), second)])
    one, other = pair
    order = compare_keys(keys_of(one, sort), keys_of(other, sort), sort)
    left, right = index_key(one, sort), index_key(other, sort)
    assert (left > right) - (left < right) == order


@pytest.mark.case("hyperstorage", 49)
def test_sorts_are_read_leniently():
    assert parse_sort(" -b , +a,, `x y`.z") == (
        SortItem(("b",), True), SortItem(("a",)), SortItem(("x y", "z")),
    )  # fmt: skip
    assert complete(parse_sort("-b,a,b")) == (SortItem(("b",), True), SortItem(("a",)), SortItem(("id",)))
    assert complete(parse_sort("a,-id,b")) == (SortItem(("a",)), SortItem(("id",), True))
    assert complete(()) == (SortItem(("id",)),)
    for text in ("a b", "-", "a;b", "1"):
        with pytest.raises(InvalidDocument) as caught:
            parse_sort(text)
        assert caught.value.code == "invalid-sort"


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "tag", "holds"),
    [
        (None, None, None, True),
        ('"1"', None, '"1"', True),
        ('"9"', None, '"1"', False),
        ('"9", "1"', None, '"1"', True),
        ('W/"1"', None, '"1"', False),
        ("*", None, '"1"', True),
        ("*", None, None, False),
        (None, "*", '"1"', False),
        (None, "*", None, True),
        (None, '"1"', '"2"', True),
        (None, 'W/"1"', '"1"', False),
    ],
)
def test_preconditions(if_match, if_none_match, tag, holds):
    """RFC 9110: If-Match compares strongly, If-None-Match weakly; what is absent matches nothing."""
    assert Preconditions.of(if_match, if_none_match).hold(tag) is holds


@pytest.mark.parametrize("text", ["", "abc", '"a', '"a" "b"'])
def test_what_is_no_list_of_tags(text):
    with pytest.raises(InvalidDocument):
        Preconditions.of(text, None)


def test_a_place_knows_its_path():
    assert DocumentPlace("c~", "1").path == "c~/1"
