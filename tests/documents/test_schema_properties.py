"""For any schema and any body, a write is taken exactly if the validator itself takes what it would store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import everlog.sync
from everlog.documents.bodies import body_of, merge, without_nulls
from everlog.errors import SchemaViolated
from tests.support import small_config

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(["", "x", "xy", "2026-01-31"]), st.just(1.5))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=3)
PATCHES = st.dictionaries(NAMES, VALUES | st.none(), max_size=3)


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Some keywords of a schema, of any mix."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer", "number", "boolean"]),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, unique=True, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "minimum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([2, 0.5]),
            "maxLength": st.integers(0, 2),
            "pattern": st.sampled_from(["^x", "y$", "[0-9]+"]),
            "format": st.sampled_from(["date", "email", "made-up"]),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "uniqueItems": st.booleans(),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    )


SCHEMAS = st.recursive(st.booleans() | _keywords(st.booleans()), _keywords, max_leaves=4)


@pytest.fixture(scope="module")
def docs(tmp_path_factory) -> Iterator[Any]:
    with everlog.sync.connect(small_config(tmp_path_factory.mktemp("schemas"))) as log:
        yield log.documents


def taken(write: Any) -> bool:
    try:
        write()
    except SchemaViolated:
        return False
    return True


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, first=BODIES, second=BODIES, patch=PATCHES)
@example(schema={"properties": {"a": {"format": "date"}}}, first={}, second={"a": "x"}, patch={"a": "2026-01-31"})
def test_a_write_is_taken_exactly_if_the_validator_takes_it(docs, schema, first, second, patch):
    fits = jsonschema_rs.validator_for(body_of(schema), validate_formats=True).is_valid
    docs.put("c~/1", first)
    docs.put_schema("any", "c~", schema)
    try:
        replaced = without_nulls(second) | {"id": "1"}
        assert taken(lambda: docs.put("c~/1", second)) == fits(body_of(replaced))
        stored = docs.get("c~/1").body
        merged = without_nulls(merge(stored, patch))
        assert taken(lambda: docs.patch("c~/1", patch)) == fits(body_of(merged))
        made: list[Any] = []
        posted = taken(lambda: made.append(docs.post("c~", second)))
        item = made[0].path.removeprefix("c~/") if made else "6f2d5c40"
        assert posted == fits(body_of(without_nulls(second) | {"id": item}))
    finally:
        docs.delete_schema("any")
