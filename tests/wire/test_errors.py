"""Errors cross the wire whole: the class, the message and the facts are the same at the client."""

from __future__ import annotations

from typing import Any

import pytest

from everlog import errors
from everlog.errors import (
    DocumentConflict,
    EverlogError,
    InvalidDocument,
    QueryLimited,
    SchemaViolated,
    StorageFailed,
    WriteUnfinished,
)
from everlog.remote.connection import refusal
from everlog.wire.errors import ERRORS, OWN_CODE, ErrorRow, code_of, error_of, facts_of, status_of

_VALUES: dict[str, Any] = {
    "expected": 1,
    "actual": 2,
    "partition": 0,
    "offset": 7,
    "size": 5,
    "limit": 4,
    "retry_after_s": 9,
    "known": ["a"],
}


def example(row: ErrorRow) -> EverlogError:
    kind: Any = row.kind
    if row.kind is WriteUnfinished:
        return WriteUnfinished("not out yet", message_id="m", transaction_id="t")
    if row.code == OWN_CODE or row.kind in (InvalidDocument, DocumentConflict, SchemaViolated):
        return kind(row.code or "its-own", "what happened")
    return kind(*[_VALUES.get(name, name) for name in row.facts]) if row.facts else kind("what happened")


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: f"{row.kind.__name__}-{row.code or 'own'}")
def test_every_row_comes_back_as_it_was(row):
    error = example(row)
    status, code, facts = status_of(error), code_of(error), facts_of(error)
    assert (status, code) == (row.status, row.code or "its-own")
    found = error_of(status, code, str(error), facts or None)
    if row.kind is errors.Unacknowledged:  # it shares a code with what knows its append
        assert isinstance(found, StorageFailed)
        return
    assert type(found) is row.kind
    assert (str(found), vars(found)) == (str(error), vars(error))


def test_what_is_not_in_the_table():
    assert (status_of(StorageFailed("x")), code_of(StorageFailed("x"))) == (500, "failed")
    assert (status_of(errors.ReplicationFailed("x")), code_of(errors.ReplicationFailed("x"))) == (500, "unavailable")
    assert status_of(errors.Deposed("x")) == 503
    assert error_of(500, "failed", "x", None) is None
    assert type(error_of(409, "conflict", "x", {})) is StorageFailed
    assert type(error_of(504, "query-limit", "x", None)) is QueryLimited
    for status, kind in (
        (401, errors.AccessDenied),
        (418, InvalidDocument),
        (503, errors.Unreachable),
        (500, StorageFailed),
    ):
        assert type(refusal(status, {"code": "teapot", "description": "x"})) is kind
