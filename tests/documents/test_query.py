"""Queries answer the same with any indexes, and read no more than they must."""

from __future__ import annotations

import asyncio
import base64
import random
import zlib
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.documents.bodies import encode_body
from everlog.documents.evaluator import Evaluator
from everlog.documents.filters.evaluation import make_matcher
from everlog.documents.filters.parser import parse_filter
from everlog.documents.filters.tree import Binary, Field, FilterNode, Literal, Unary, conjuncts, text_of
from everlog.documents.indexes import Index, IndexNew, IndexSortItem, IndexStatus, check_index
from everlog.documents.order import complete, index_key, keys_of, parse_sort
from everlog.documents.page_place import page_token, parse_token
from everlog.documents.port import Batch, FoundElement
from everlog.documents.query import CountAnswer, Query, QueryAnswer, QueryLimits, QueryRunner
from everlog.documents.query_plan import IndexRange, make_plan
from everlog.errors import InvalidDocument, QueryLimited
from tests.models.document_filter import naive_match, naive_sorted
from tests.support import ManualClock

NOW = 1


def make_index(
    name: str, sort: str = "", condition: str | None = None, status: IndexStatus = IndexStatus.READY
) -> Index:
    items = tuple(
        IndexSortItem(str(item).removeprefix("-"), "text", "desc" if item.descending else "asc")
        for item in parse_sort(sort)
    )
    checked = check_index(IndexNew(name, items, condition))
    return Index(name, checked.sort_by, checked.filter_by, status, f"{name}-1")


class Rows:
    """A collection and its indexes in memory; counts what is read."""

    def __init__(self, elements: list[dict[str, Any]], indexes: list[Index]) -> None:
        self.indexes = indexes
        self.reads: list[tuple[str | None, IndexRange, bool, int]] = []
        self._sources: dict[str | None, list[FoundElement]] = {
            None: sorted(FoundElement(one["id"], encode_body(one)) for one in elements)
        }
        for index in indexes:
            match = make_matcher(index.condition)
            kept = [one for one in elements if match(one, NOW)]
            self._sources[index.index_id] = sorted(
                FoundElement(index_key(one, index.sort), encode_body(one)) for one in kept
            )

    async def fetch(self, index: Index | None, where: IndexRange, reverse: bool, limit: int, max_bytes: int) -> Batch:
        name = None if index is None else index.index_id
        self.reads.append((name, where, reverse, limit))
        found = [
            one for one in self._sources[name] if one.key >= where.low and (where.high is None or one.key < where.high)
        ]
        if reverse:
            found.reverse()
        return Batch(found[:limit], len(found) >= limit)

    def ask(self, query: Query, limits: QueryLimits | None = None) -> QueryAnswer:
        return asyncio.run(self._runner(query, limits).run())

    def _runner(self, query: Query, limits: QueryLimits | None) -> QueryRunner:
        known = limits or QueryLimits()
        return QueryRunner(query, self.indexes, self.fetch, clock=ManualClock(), limits=known, evaluator=Evaluator())

    def count(self, query: Query, limits: QueryLimits | None = None) -> CountAnswer:
        known = len(self._sources[None])
        return asyncio.run(self._runner(query, limits).count(known=known))

    def ids(self, **query: Any) -> list[str]:
        return [one["id"] for one in self.ask(Query(**query)).elements]


D = [
    {"id": "item1", "a": "hello", "b": 100500},
    {"id": "item2", "a": "goodbye", "b": 1},
    {"id": "item3", "a": "way way", "b": 12},
]
I1, I2, I3 = make_index("index1", "", "b > 10"), make_index("index2", "a", "b > 10"), make_index("index3", "a")


@pytest.mark.parametrize(
    ("query", "index", "expected"),
    [
        (Query(sort="id"), None, "123"),
        (Query(sort="-id"), None, "321"),
        (Query(sort="a"), "index3", "213"),
        (Query(sort="-a"), "index3", "312"),
        (Query(sort="a,-id"), "index3", "213"),
        (Query(sort="a,b"), "index3", "213"),
        (Query(filter="b > 10"), "index1", "13"),
        (Query(filter="b > 10", sort="-id"), "index1", "31"),
        (Query(filter="b > 10", sort="a"), "index2", "13"),
        (Query(filter="b > 10", sort="-a"), "index2", "31"),
        (Query(filter="b > 12", sort="id"), "index1", "1"),
        (Query(filter='b > 10 and a > "hello"', sort="a"), "index2", "3"),
        (Query(filter="b < 50", sort="a"), "index3", "23"),
        (Query(filter='a = "way way"'), "index3", "3"),
        (Query(filter="b > 5"), None, "13"),
        (Query(filter="10 < b"), None, "13"),
    ],
)
@pytest.mark.case("hyperstorage", 55, 56, 57, 62)
def test_the_index_that_fits_is_used(query, index, expected):
    """Order first, then the narrower; an index is used only if it holds all that the query wants."""
    rows = Rows(D, [I1, I2, I3])
    answer = rows.ask(query)
    assert answer.explanation.index == index
    assert [one["id"] for one in answer.elements] == [f"item{number}" for number in expected]


@pytest.mark.parametrize(
    ("condition", "query"),
    [
        ("10 < x", "5 < x"),
        ("x has [1, 2, 3]", "x has [1, 2]"),
        ('x > "a"', "x > 5"),
        ("x > 9", "x > 10"),  # the text "5" is above "10", not above "9"
        ("x > 4", "x > 3"),
        ("x and 2", "x and 1"),
        ("x", "x + 1 and y"),
        ("10 < x", 'x > "a"'),  # no text like that is a number
        ("x and y", "z = 1 and x and y"),  # 1 and 2 are both true, but have no bit in common
    ],
)
@pytest.mark.case("hyperstorage", 62)
def test_an_index_that_may_lack_rows_is_not_used(condition, query):
    plan = make_plan(parse_filter(query), complete(()), [make_index("i", "", condition)])
    assert plan.index is None


@pytest.mark.parametrize(
    ("condition", "query"),
    [
        ("x > 4", "x > 5"),
        ("x >= 4", "x >= 5"),
        ("x >= 5", "x > 5"),
        ("x > 5", "x = 7"),
        ("x > 5", 'x > "a"'),  # true of texts only
        ("x < 3", "x < 2"),
        ("x > 5", "x > 5 and y = 20"),
        ("x > 5 and y = 20", "y = 20 and x > 6"),
        ("x*4 <= 4", "x*4 <= 4 and y"),
        ("a > 5", 'a > 7 and id > "abc"'),
        ("x = 1 or y = 2", "x = 1 or y = 2"),
    ],
)
def test_an_index_that_holds_all_rows_is_used(condition, query):
    plan = make_plan(parse_filter(query), complete(()), [make_index("i", "", condition)])
    assert plan.index is not None


@pytest.mark.parametrize("status", [IndexStatus.INDEXING, IndexStatus.DELETING, IndexStatus.FAILED])
@pytest.mark.case("hyperstorage", 54)
def test_only_a_ready_index_is_used(status):
    rows = Rows(D, [msgspec.structs.replace(I3, status=status)])
    assert rows.ask(Query(sort="a")).explanation.index is None


@pytest.mark.case("hyperstorage", 39, 40, 41, 42, 44, 58)
def test_reads_are_as_few_and_small_as_they_can_be():
    """The first read asks for a page, later ones for more; bounds on the order are pushed to the store."""
    rows = Rows(D, [I3])
    assert rows.ids(size=50, sort="-id", filter='id < "item3"') == ["item2", "item1"]
    assert rows.reads[-1] == (None, IndexRange("", "item3"), True, 50)
    assert rows.ids(size=5, filter='id ="item3"') == ["item3"]
    assert rows.reads[-1] == (None, IndexRange("item3", "item3\0"), False, 5)
    assert len(rows.reads) == 2
    rows = Rows(D, [])
    assert rows.ids(size=1, filter='a ="way way"') == ["item3"]
    assert rows.reads == [(None, IndexRange("", None), False, 1), (None, IndexRange("item1\0", None), False, 500)]
    rows = Rows(D, [])
    assert rows.ids(size=2, sort="a", filter='a >"goodbye"') == ["item1", "item3"]
    assert rows.reads == [(None, IndexRange("", None), False, 10002)]
    assert rows.ids(size=2, sort="-a", filter='a >"goodbye"') == ["item3", "item1"]
    assert rows.ids(size=50, sort="id", filter="b>10") == ["item1", "item3"]
    rows = Rows(D, [I3])
    assert rows.ids(size=2, sort="a", filter="b < 50") == ["item2", "item3"]
    assert [limit for _, _, _, limit in rows.reads] == [2, 501]


@pytest.mark.case("hyperstorage", 43)
def test_a_query_that_reads_too_much_ends():
    rows = Rows([{"id": f"{number:05}", "a": -number} for number in range(10_100)], [])
    with pytest.raises(QueryLimited) as caught:
        rows.ask(Query(size=2, sort="a"))
    assert caught.value.code == "query-skipped-rows-limited"
    assert rows.ids(size=2, sort="a", max_skip=20_000) == ["10099", "10098"]
    with pytest.raises(QueryLimited) as caught:
        rows.ask(Query(size=1, filter="a > 0", max_skip=1000))
    assert caught.value.code == "query-skipped-rows-limited"
    with pytest.raises(QueryLimited) as caught:
        rows.ask(Query(size=1, filter="a > 0", max_skip=10_000), QueryLimits(max_requests=2))
    assert caught.value.code == "query-count-limited"
    with pytest.raises(QueryLimited) as caught:
        rows.ask(Query(size=1, filter="a > 0"), QueryLimits(max_bytes=1000))
    assert caught.value.code == "query-bytes-limited"


def test_sizes_are_bounded():
    rows = Rows(D, [])
    assert rows.ids(size=0) == []
    for bad in (Query(size=-1), Query(size=10**9), Query(max_skip=-1), Query(after="x")):
        with pytest.raises(InvalidDocument):
            rows.ask(bad)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.sampled_from(["", "1", "10", "5", "9", "a", "b", "true"])
)
collections = st.lists(
    st.dictionaries(st.sampled_from("ab"), scalars, max_size=2), max_size=12
).map(lambda found: [{**one, "id": f"i{number:02}"} for number, one in enumerate(found)])  # fmt: skip
ids = st.sampled_from(["", "i03", "i05", "i99"])
fields = st.sampled_from("ab").map(lambda name: Field((name,)))
comparisons = st.builds(
    Binary, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), fields, scalars.map(Literal)
) | st.builds(Binary, st.sampled_from(["=", "<", "<=", ">", ">="]), scalars.map(Literal), fields) | st.builds(
    Binary, st.sampled_from(["=", "<", ">="]), st.just(Field(("id",))), ids.map(Literal)
)  # fmt: skip
conditions: st.SearchStrategy[FilterNode] = st.recursive(
    comparisons | fields | st.builds(Unary, st.just("!"), comparisons),
    lambda inner: st.builds(Binary, st.sampled_from(["and", "and", "and", "or", "xor"]), inner, inner),
    max_leaves=4,
)
sorts = st.lists(
    st.tuples(st.sampled_from(["a", "b", "id"]), st.booleans()), max_size=3, unique_by=lambda item: item[0]
)


def sort_text(sort: list[tuple[str, bool]]) -> str:
    return ",".join(("-" if descending else "") + name for name, descending in sort)


def joined(parts: list[FilterNode]) -> FilterNode:
    whole = parts[0]
    for part in parts[1:]:
        whole = Binary("and", whole, part)
    return whole


@st.composite
def index_lists(draw: st.DrawFn, near: FilterNode | None) -> list[Index]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        sort = draw(sorts)
        while "id" in [name for name, _ in sort[:-1]]:
            sort = sort[:-1]
        pool = [st.none(), conditions]
        if near is not None:
            parts = st.sampled_from(list(conjuncts(near)))
            pool += [parts, st.lists(parts, min_size=2, max_size=3).map(joined)]
        condition = draw(st.one_of(*pool))
        found.append(make_index(f"x{number}", sort_text(sort), None if condition is None else text_of(condition)))
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Any], FilterNode | None, list[tuple[str, bool]], list[Index], int]:
    condition = draw(st.none() | conditions)
    return draw(collections), condition, draw(sorts), draw(index_lists(condition)), draw(st.integers(1, 5))


@given(cases())
@example(([{"a": "5", "id": "i00"}], parse_filter("a > 10"), [], [make_index("x0", "", "a > 9")], 1))
@example(([{"a": "b", "id": "i00"}], parse_filter('a > "a"'), [], [make_index("x0", "", "10 < a")], 1))
@example(
    ([{"a": 1, "b": 2, "id": "i0"}], parse_filter("id > '' and a and b"), [], [make_index("x0", "", "a and b")], 1)
)
@example(([{"id": "i00"}, {"id": "i01"}], parse_filter("a = null"), [("a", False), ("b", True)], [], 1))
def test_a_query_with_indexes_answers_as_one_without(case):
    """Page by page, through whichever link, the answer is the naive one: filter all, sort all."""
    elements, condition, sort, indexes, size = case
    expected = [one["id"] for one in naive_sorted([one for one in elements if naive_match(condition, one)], sort)]
    rows = Rows(elements, indexes)
    query = Query(filter="" if condition is None else text_of(condition), sort=sort_text(sort), size=size)
    found: list[str] = []
    for _ in range(20):
        answer = rows.ask(query)
        found += [one["id"] for one in answer.elements]
        if answer.next is None:
            break
        query = msgspec.structs.replace(query, **answer.next)
    assert found == expected, answer.explanation


@given(cases())
def test_a_count_is_the_naive_one(case):
    """With any indexes; without a filter it is what is known."""
    elements, condition, _, indexes, _ = case
    query = Query(filter="" if condition is None else text_of(condition))
    answer = Rows(elements, indexes).count(query)
    assert answer.matching == sum(naive_match(condition, one) for one in elements), answer.explanation


def test_a_count_reads_the_least_and_no_more_than_it_may():
    rows = Rows([{"id": f"{number:05}", "a": -number} for number in range(5000)], [make_index("a", "a")])
    answer = rows.count(Query(filter="a > -10"))
    assert (answer.matching, answer.explanation.index, answer.explanation.rows_read) == (10, "a", 10)
    assert not answer.explanation.sorted_in_memory
    assert rows.count(Query(filter="a != 1")).matching == 5000
    assert [limit for _, _, _, limit in rows.reads[2:]] == [1000] * 6
    few, late = QueryLimits(max_bytes=1000), QueryLimits(timeout_s=-1)
    for limits, code in ((few, "query-bytes-limited"), (late, "query-timeout")):
        with pytest.raises(QueryLimited) as caught:
            rows.count(Query(filter="a != 1"), limits)
        assert caught.value.code == code


noise = random.Random(5)
LONG_STARTS = ["x" * 5000, "".join(chr(noise.randint(0x4E00, 0x9FFF)) for _ in range(3000)), "\U0010ffff" * 2000, ""]
long_texts = st.builds(
    lambda start, end: start + end, st.sampled_from(LONG_STARTS), st.text("ab\U0010fffe", max_size=3)
)
long_numbers = st.builds("{}{}{}".format, st.sampled_from(["", "-"]), st.just("123456789" * 44), st.sampled_from("123"))
long_values = st.one_of(
    long_texts,
    long_numbers.map(Decimal),
    st.builds(lambda start, end: [start, end], st.sampled_from(LONG_STARTS), st.integers(0, 2)),
    st.none() | st.booleans() | st.integers(0, 3),
)
long_elements = st.lists(
    st.fixed_dictionaries({"a": long_values, "b": long_values}), max_size=12
).map(lambda found: [{**one, "id": f"i{number:02}"} for number, one in enumerate(found)])  # fmt: skip
LONG_FILTERS = [
    "",
    "b != 1",
    " or ".join(["a != 7"] * 99),
    "a and b or true",
    "1 and a or id > 'i00'",
    "(" * 90 + "a != 7" + ")" * 90,
    "!" * 98 + "false",
    f"a != '{'y' * 7000}'",
    'id > "i00"',
    'id > "i01" and a != 7 or id < "i09"',
]


@given(
    long_elements,
    st.sampled_from(LONG_FILTERS),
    sorts,
    st.integers(1, 4),
    st.sampled_from([[], ["a"], ["-b"], ["b,a"]]),
)
@example([{"id": f"i{b}", "a": 1, "b": 3 - b} for b in range(3)], "a and b", [], 1, [])
def test_paging_through_is_one_large_page(elements, condition, sort, size, indexes):
    """Whatever the values, the filter and the size are: every page that is not the last has a link that works."""
    rows = Rows(elements, [make_index(f"x{number}", one) for number, one in enumerate(indexes)])
    query = Query(filter=condition, sort=sort_text(sort), size=1000)
    expected = [one["id"] for one in rows.ask(query).elements]
    query, found = msgspec.structs.replace(query, size=size), []
    for _ in range(len(elements) + 1):
        answer = rows.ask(query)
        found += [one["id"] for one in answer.elements]
        assert (answer.next is None) == (len(answer.elements) < size)
        if answer.next is None:
            break
        assert len(urlencode(answer.next)) < 4096
        query = msgspec.structs.replace(query, **answer.next)
    assert found == expected


@given(long_elements, sorts.filter(bool), st.integers(1, 4), st.booleans())
def test_a_page_goes_on_where_the_last_element_is_gone(elements, sort, size, deleted):
    """Deleted or changed after it was shown: all others come, in order; once, unless long ones begin alike."""
    left = {one["id"]: one for one in elements}
    rows, query = Rows(elements, []), Query(sort=sort_text(sort), size=size)
    expected = [one["id"] for one in rows.ask(msgspec.structs.replace(query, size=1000)).elements]
    found: list[str] = []
    for _ in range(40):
        answer = rows.ask(query)
        found += [one["id"] for one in answer.elements if "gone" not in one]
        if answer.next is None:
            break
        last = answer.elements[-1]["id"]
        left[last] = {"id": last, "gone": True}
        rows = Rows([one for one in left.values() if not deleted or "gone" not in one], [])
        query = msgspec.structs.replace(query, **answer.next)
    assert list(dict.fromkeys(found)) == expected
    if not any(is_shortened(one, sort) for one in elements):
        assert found == expected


def is_shortened(element: dict[str, Any], sort: list[tuple[str, bool]]) -> bool:
    order = complete(parse_sort(sort_text(sort)))
    return parse_token(page_token(element, order), order).digest is not None


@pytest.mark.parametrize("token", ["", "x", "eg", "alsx", "altdXQ", "enicq1YqSyxSslIyNDI2MTUzV6oFADEfBR8", "z" * 5000])
def test_a_token_of_another_kind_is_refused(token):
    with pytest.raises(InvalidDocument) as caught:
        parse_token(token, complete(parse_sort("a")))
    assert caught.value.code == "invalid-token"


def test_a_token_is_of_one_sort_and_does_not_unpack_without_end():
    sort = complete(parse_sort("a"))
    token = page_token({"id": "x", "a": 1}, sort)
    assert parse_token(token, sort).keys == keys_of({"id": "x", "a": 1}, sort)
    bomb = base64.urlsafe_b64encode(b"z" + zlib.compress(b'["' + b"a" * 2_000_000 + b'"]', 9)).decode().rstrip("=")
    for wrong, order in ((token, complete(parse_sort("-a"))), (token, complete(parse_sort("b"))), (bomb, sort)):
        with pytest.raises(InvalidDocument):
            parse_token(wrong, order)


@pytest.mark.parametrize(("sort", "raw"), [("", True), ("-id", True), ("a", True), ("b", False)])
def test_a_page_that_needs_no_look_at_its_elements_is_passed_on_as_it_is_stored(sort, raw):
    """Neither filtered nor sorted in memory: decoding would be wasted. The text and the next link are the same."""
    rows = Rows(D, [I3])
    answer = rows.ask(Query(sort=sort, size=2))
    assert [isinstance(one, msgspec.Raw) for one in answer.page] == [raw, raw]
    assert encode_body(answer.page) == encode_body(answer.elements)
    assert answer.next is not None
    everything = rows.ids(sort=sort)
    following = rows.ask(Query(sort=sort, **answer.next))
    assert [one["id"] for one in [*answer.elements, *following.elements]] == everything


def test_the_link_to_the_next_page_is_a_filter_on_ids_or_a_token():
    rows = Rows(D, [I3])
    assert rows.ask(Query(size=1, sort="id")).next == {"filter": 'id > "item1"'}
    assert rows.ask(Query(size=1, filter='b > 0 and id > "item1"')).next == {"filter": '(id > "item2") and (b > 0)'}
    assert rows.ask(Query(size=50)).next is None
    link = rows.ask(Query(size=1, sort="-a")).next
    assert link is not None
    assert rows.ids(size=5, sort="-a", **link) == ["item1", "item2"]
    with pytest.raises(InvalidDocument):
        rows.ask(Query(size=5, sort="a", **link))


def test_explain_names_the_index_that_would_help():
    answer = Rows(D, []).ask(Query(sort="-a", filter="b > 10"))
    assert answer.explanation.sorted_in_memory
    assert answer.explanation.helpful_index == "sortBy [-a], filterBy b > 10"
    assert (answer.explanation.rows_read, answer.explanation.rows_rejected) == (3, 1)
