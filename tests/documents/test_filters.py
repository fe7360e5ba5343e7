"""Filters: the grammar, what they mean, and what they refuse."""

from __future__ import annotations

import contextlib
import re
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.documents.filters.budget import Budget, BudgetLimits
from everlog.documents.filters.evaluation import make_matcher, uses_time
from everlog.documents.filters.parser import parse_filter
from everlog.documents.filters.patterns import check_pattern
from everlog.documents.filters.tree import Binary, Field, FilterNode, FunctionCall, Literal, Unary, text_of
from everlog.errors import FilterTooExpensive, InvalidDocument
from tests.models.document_filter import naive_match

NOW = 1_700_000_000_000


def matches(text: str, element: object) -> bool:
    return make_matcher(parse_filter(text))(element, NOW, Budget(BudgetLimits().query_steps))


def try_to_match(text: str, element: object) -> bool | None:
    """None if the budget of a query does not suffice."""
    with contextlib.suppress(FilterTooExpensive):
        return matches(text, element)
    return None


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("!a or b", "(!a) or b"),
        ("a or b xor c and d = e < f has g + h * -i", "a or (b xor (c and (d = (e < (f has (g + (h * (-i))))))))"),
        ("a - b - c", "(a - b) - c"),
        ("a = b != c", "(a = b) != c"),
        ("a has not 1", "a has not (1)"),
        ("a not like 'x'", 'a not like "x"'),
        ("x=0xFF", "x = 255"),
        ("isEmpty(a)", "empty(a)"),
        ("compareIgnoreCase(a, b) = 0", "compare_ignoring_case(a, b) = 0"),
        ("nullable = truest", "`nullable` = `truest`"),
        ("`a``b`.c = 1", "`a``b`.`c` = 1"),
        ("ünïcode > 1", "`ünïcode` > 1"),
    ],
)
def test_precedence_and_spellings(text, same_as):
    """Unary binds tightest, every binary operator groups to the left, keywords end where names end."""
    assert parse_filter(text) == parse_filter(same_as)


@pytest.mark.parametrize(
    "text",
    ["b >", "a orb", "(a", "a b", "f(a)", "length()", "'open", '"open', "a = 1.", "a.1", "1 = 01", "s\"${a\"", "[1,",
     "{a:1}", "a like '('", "a like '(?=x)'", "a like '(a)\\1'", "a like '(?>a)'", "a like '(a{99}){99}'", "`` = 1",
     "a = 1e99999", "=",
     "a = " + "9" * 500, "!" * 200 + "a", "x" * 9000],
)  # fmt: skip
@pytest.mark.case("hyperstorage", 13)
def test_what_cannot_be_read_is_refused_with_its_place(text):
    with pytest.raises(InvalidDocument) as caught:
        parse_filter(text)
    assert caught.value.code == "invalid-filter"


def test_the_place_is_where_the_text_stops_making_sense():
    with pytest.raises(InvalidDocument) as caught:
        parse_filter("a = 1 and and b")
    assert caught.value.facts == {"position": 11}


@pytest.mark.parametrize(
    ("text", "element", "expected"),
    [
        ('a != "x"', {}, True),
        ('a < "z"', {}, False),
        ("a <= null", {}, True),
        ("a >= null", {"a": 1}, False),
        ('a = "1"', {"a": 1}, False),
        ("a = 1", {"a": Decimal("1.0")}, True),
        ('a > "5"', {"a": 10}, True),
        ('a > "x"', {"a": 10}, False),
        ("a > 5", {"a": "10"}, False),
        ("a < true", {"a": False}, True),
        ("x.y > 1", {"x": {"y": 2}}, True),
        ("x.y > 1", {"x": 1}, False),
        ("tags has 3", {"tags": [1, 2, 3]}, True),
        ("tags has [1, 2]", {"tags": [1, 2]}, True),
        ("tags has [1, 3]", {"tags": [1, 2]}, False),
        ("tags has not 3", {}, True),
        ('a has "ell"', {"a": "hello"}, True),
        ('a like "^way"', {"a": "way way"}, True),
        ('a not like "^way"', {}, True),
        ("a and 2", {"a": 3}, True),
        ("a and 4", {"a": 3}, False),
        ("a xor true", {"a": False}, True),
        ("a or true", {}, False),
        ("a = 1 or substr(b, 6) = 'x'", {"a": 1, "b": "hello"}, True),
        ("substr(b, 6) = 'x'", {"b": "hello"}, False),
        ("a / 0 = 1", {"a": 1}, False),
        ("a * 4 <= 4", {"a": 1}, True),
        ('a + "b" = "ab"', {"a": "a"}, True),
        ("case(2, 1, a) = 5", {"a": 5}, True),
        ("split(a, ',') has 'y'", {"a": "x,y"}, True),
        ("indexOf(a, 'l') = 2", {"a": "hello"}, True),
        ("apply(a, 1) = 2", {"a": [1, 2]}, True),
        ("upper(a) = 'X' and lower('Y') = 'y' and length(a) = 1", {"a": "x"}, True),
        ("isExists(a) and !isEmpty(a)", {"a": "x"}, True),
        ("format_unix_time(a, 'yyyy-MM-dd') = '1970-01-02'", {"a": 86_400_000}, True),
        ("parse_unix_time('1970-01-01T00:00:01Z') = a", {"a": 1000}, True),
        ("unix_time() > 1600000000000", {}, True),
        ('s"${a}-${b + 1}" = "x-2"', {"a": "x", "b": 1}, True),
        ("a yes", None, None),
    ],
)  # fmt: skip
@pytest.mark.case("hyperstorage", 45, 47, 48)
def test_meaning(text, element, expected):
    if expected is None:
        with pytest.raises(InvalidDocument):
            parse_filter(text)
    else:
        assert matches(text, element) is expected


numbers = st.one_of(st.integers(-20, 20), st.sampled_from([Decimal("1.0"), Decimal("-2.5"), Decimal("1E+1")]))
texts = st.sampled_from(["", "1", "10", "2.5", "a", "b", "ab", "true", "no", "z"])
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.sampled_from("xy"), scalars, max_size=2))
elements = st.dictionaries(st.sampled_from("abc"), values, max_size=3)
fields = st.one_of(
    st.sampled_from("abc").map(lambda name: Field((name,))), st.sampled_from("abc").map(lambda name: Field((name, "x")))
)
leaves = st.one_of(fields, scalars.map(Literal), st.lists(scalars, max_size=2).map(Literal))
comparisons = ["=", "!=", "<", "<=", ">", ">=", "has", "has not", "xor", "and", "or", "+", "-", "*"]


def compound(inner: st.SearchStrategy[FilterNode]) -> st.SearchStrategy[FilterNode]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(comparisons), inner, inner),
        st.builds(Unary, st.just("!"), inner),
        st.builds(lambda one: FunctionCall("exists", (one,)), inner),
        st.builds(lambda one: FunctionCall("empty", (one,)), inner),
        st.builds(lambda one: FunctionCall("length", (one,)), inner),
    )


filters = st.recursive(leaves, compound, max_leaves=8)


def arithmetic_on_other_types(node: FilterNode) -> bool:
    return isinstance(node, Binary) and node.operator == "+"


@given(filters, st.lists(elements, max_size=5))
def test_every_filter_means_what_the_definition_says(node, rows):
    """The compiled closures agree with a naive interpreter, also where there is no value."""
    match = make_matcher(node)
    for row in rows:
        if "+" in text_of(node) and any(isinstance(value, str | list) for value in [*row.values(), *literals(node)]):
            continue  # concatenation is tested above
        assert match(row, NOW) == naive_match(node, row), text_of(node)


def literals(node: FilterNode) -> list[object]:
    from everlog.documents.filters.parser import children

    if isinstance(node, Literal):
        return [node.value]
    return [value for child in children(node) for value in literals(child)]


@given(filters)
def test_a_filter_as_text_reads_as_the_same_filter(node):
    assert text_of(parse_filter(text_of(node))) == text_of(node)


@given(st.text(max_size=40) | st.text(alphabet="ab()[]{}<>=!+-*/%.,'\"`$ s01orndhaslik", max_size=60))
def test_any_text_is_a_filter_or_an_error(text):
    """Never another exception, never long: a filter of nonsense is refused."""
    started = time.process_time()
    try:
        node = parse_filter(text)
    except InvalidDocument:
        return
    finally:
        assert time.process_time() - started < 1
    make_matcher(node)({"a": "a" * 50, "b": [1]}, NOW)


EVIL = [
    "(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    ".*.*=.*",
    "a*a*b",
    "x.*y.*z$",
    "^a.*b",
    "(a?){25}a{25}",
    "(foo)+bar?",
    "([a-z]+)*@",
]


@pytest.mark.parametrize("pattern", EVIL)
@pytest.mark.parametrize("length", [30, 1000, 100_000])
def test_no_pattern_takes_long(pattern, length):
    """Where Python's engine might go back and back, RE2 goes on; a text that is too long even so is refused."""
    started = time.process_time()
    try_to_match(f'a like "{pattern}"', {"a": "a" * length + "x"})
    assert time.process_time() - started < 5  # seconds of a slow machine; exponential time would be years


def test_a_pattern_finds_what_is_far_apart():
    text = "foo" + "-" * 10_000 + "bar" + "-" * 10_000 + "baz"
    assert matches('a like "foo.*bar.*baz"', {"a": text})
    assert not matches('a like "baz.*bar.*foo"', {"a": text})
    assert matches('a like "^(foo|bar)+-"', {"a": "foobarfoo-"})


WIDE = ["[ab]*a[ab]{400}c", "(a?b?){900}c", "(.?){1000}c", "(a?){1000}(b?){1000}(a?){1000}(b?){1000}c"]


@pytest.mark.parametrize("pattern", WIDE)
@pytest.mark.parametrize("length", [1000, 10_000, 1_000_000])
def test_no_pattern_with_many_states_takes_long(pattern, length):
    started = time.process_time()
    try_to_match(f'a like "{pattern}"', {"a": ("abbab" * length)[:length]})
    assert time.process_time() - started < 5


@pytest.mark.parametrize("pattern", [",", "[,;]", "b[^c]*c|,", "(x?y?){100},", "(,|b)", ""])
@pytest.mark.parametrize("length", [1000, 100_000])
def test_no_split_takes_long(pattern, length):
    started = time.process_time()
    try_to_match(f'length(split(a, "{pattern}")) > 0', {"a": ("b,bb," * length)[:length]})
    assert time.process_time() - started < 5


def test_a_long_text_is_split_at_a_plain_pattern():
    assert matches('length(split(a, "[,;]")) = 10001', {"a": ("b" * 50 + ";") * 10_000})
    for pattern, text in (("[,;]", ";" * 1_000_000), ("b*;", "b;" * 50_000)):  # each might take the whole text
        with pytest.raises(FilterTooExpensive):
            matches(f'length(split(a, "{pattern}")) > 0', {"a": text})


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a like '(?=x)'", "not like"),
        ("a like '(?<!x)y'", "not like"),
        ("a like '(a)\\1'", "back-references"),
        ("a like 'a\\Z'", "\\z"),
        ("a like '(a{99}){99}'", "1,000"),
        ("a like '(\\pL?){200}'", "smaller repetitions"),
        ("a like '\ud800'", "surrogate"),
        ("split(a, '\\1') = []", "back-references"),
    ],
)
def test_an_unsupported_pattern_is_refused_with_a_remedy(text, remedy, capfd):
    with pytest.raises(InvalidDocument, match=re.escape(remedy)) as caught:
        parse_filter(text)
    assert caught.value.code == "invalid-filter"
    assert capfd.readouterr() == ("", "")  # RE2 does not print it, too


def test_the_classes_of_patterns_are_of_ascii_and_cases_of_unicode():
    assert matches('a like "^\\\\w+ \\\\d$"', {"a": "straw 1"})
    assert not matches('a like "^\\\\w+$"', {"a": "größe"})
    assert matches('a like "^\\\\pL+$"', {"a": "größe"})
    assert not matches('a like "\\\\d"', {"a": "٣"})
    assert matches('a like "(?i)^GRÖSSER$"', {"a": "größser".replace("ß", "s")})
    assert not matches('a like "^GROSS"', {"a": "gross"})


def test_a_text_that_is_no_unicode_matches_no_pattern():
    assert not matches("'\ud800' like '.'", {})
    assert not matches("length(split('\ud800', ',')) > 0", {})


pieces = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\w", "\\d", "^", "\\b", "(a|b)", "(ab|a)", "(a*b|b)", "\n"])
repeats = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "*?"])


@given(
    st.lists(st.tuples(pieces, repeats), max_size=5).map(lambda parts: "".join(one + repeat for one, repeat in parts)),
    st.sampled_from(["", "(?i)", "(?s)", "(?m)"]),
    st.text(alphabet="aAbB1_ \n", max_size=8),
)
def test_patterns_find_what_python_finds(pattern, flags, text):
    """On short texts, where neither can take long. The end is apart: `$` is before a last line break only in Python."""
    try:
        found, known = check_pattern(flags + pattern), re.compile(flags + pattern)
    except (InvalidDocument, re.error):
        return
    assert found.search(text, Budget()) == (known.search(text) is not None), flags + pattern
    if known.search("") is None and all(one.group() for one in known.finditer(text)):  # of empty ones, each has its own
        assert found.split(text, Budget()) == [piece or "" for piece in known.split(text)], flags + pattern


def test_a_filter_knows_whether_it_depends_on_the_time():
    assert uses_time(parse_filter("a > 1 and b < unix_time()"))
    assert not uses_time(parse_filter("a > 1"))
