"""Patterns of document paths against a matcher that knows no shortcut, and what is no pattern."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.path_pattern import MAX_PATTERN_BYTES, PathPattern
from everlog.documents.paths import parse_path
from everlog.documents.templates import matches
from everlog.errors import InvalidDocument

NAMES = ["a", "b", "a~", "b~", "A", ".a", "a.", "a*b", "~"]
TEMPLATE_PARTS = [*NAMES, "{*}", "{name}", "a{*}", "{*}~", "{x}.a"]
names = st.sampled_from(NAMES)
segments = st.lists(names, min_size=1, max_size=4)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.sampled_from(["a", "b", "a~", "b~", "A", "*"]), min_size=0, max_size=3))
    last = draw(st.sampled_from(["a", "b~", "*", "**"]))
    return "/" + "/".join([*parts, last])


def naive(pattern: str, path: str) -> bool:
    """By a regular expression over the whole path; an element counts if its collection does."""
    parts = [{"*": "[^/]+", "**": "[^/]+(/[^/]+)*"}.get(part, re.escape(part)) for part in pattern[1:].split("/")]
    expression = re.compile("/".join(parts))
    try:
        place = parse_path(path)
    except InvalidDocument:
        return expression.fullmatch(path) is not None
    return any(expression.fullmatch(one) for one in {place.path, place.uri})


@given(patterns(), segments)
def test_a_pattern_matches_what_a_naive_matcher_does(pattern, given_segments):
    path = "/".join(given_segments)
    assert PathPattern.parse(pattern).matches(path) == naive(pattern, path)
    assert str(PathPattern.parse(pattern)) == pattern


@given(patterns(), st.lists(st.sampled_from(TEMPLATE_PARTS), min_size=1, max_size=3))
def test_what_covers_a_template_matches_all_that_the_template_does(pattern, parts):
    """Tried on every path of the small alphabet: none that the template matches is outside the pattern."""
    template = "/".join(parts)
    if "{" not in template or not PathPattern.parse(pattern).covers(template):
        return
    for names_ in itertools.product([*NAMES, "x", "x~", "ab", "q.a"], repeat=len(parts)):
        path = "/".join(names_)
        if matches(template, path):
            assert PathPattern.parse(pattern).matches(path), (pattern, template, path)


def test_covering_is_not_only_refused():
    for pattern, template in [
        ("/**", "{*}"),
        ("/**", "a/{*}~/{*}"),
        ("/people/*", "people/{name}"),
        ("/people/*", "people/a{name}b"),
        ("/shop/orders~", "shop/orders~/{*}"),
        ("/*/orders~", "{tenant}/orders~/{*}"),
        ("/shop/**", "shop/{*}/{*}"),
    ]:
        assert PathPattern.parse(pattern).covers(template), (pattern, template)
    for pattern, template in [
        ("/people/ann", "people/{name}"),
        ("/people/*", "{*}/ann"),
        ("/people/**", "people{*}/x"),
        ("/people/*", "people/{name}/x"),
        ("/orders~", "{*}/1"),
    ]:
        assert not PathPattern.parse(pattern).covers(template), (pattern, template)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with"),
        ("shop/**", "begins with"),
        ("**", "begins with"),
        ("/", "neither empty"),
        ("/a//b", "neither empty"),
        ("/a/", "neither empty"),
        ("/./a", "neither empty"),
        ("/a/..", "neither empty"),
        ("/a/**/b", "at the end"),
        ("/a*", "whole segment"),
        ("/***", "whole segment"),
        ("/a%2Fb", "without %-encoding"),
        ("/a/{b}", "without %-encoding"),
        ("/a\nb", "without %-encoding"),
        ("/a\x00", "without %-encoding"),
        ("/" + "a" * MAX_PATTERN_BYTES, "at most"),
    ],
)
def test_what_is_no_pattern(text, reason):
    with pytest.raises(ValueError, match=reason):
        PathPattern.parse(text)


@pytest.mark.parametrize("path", ["", "/", "a/", "/a", "a//b", ".", "..", "a/..", "../a", "a\x00", "A/b"])
def test_odd_paths_match_no_exact_pattern(path):
    """Only what wildcards meet can be odd; and no path is taken for another one."""
    assert not PathPattern.parse("/a").matches(path)
    assert not PathPattern.parse("/a/b").matches(path)
