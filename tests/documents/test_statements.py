"""Pages are found by searching an index of the file, never by scanning the rows before them."""

from __future__ import annotations

import sqlite3

import pytest

from everlog.documents.sqlite.document_store import SQL, SqliteDocuments


@pytest.fixture
async def connection(tmp_path):
    store = SqliteDocuments(tmp_path)
    yield store._reader
    await store.close()


@pytest.mark.parametrize(
    ("name", "searched"),
    [
        ("elements", "(document_uri=? AND item_id>? AND item_id<?)"),
        ("elements_reverse", "(document_uri=? AND item_id>? AND item_id<?)"),
        ("entries", "(definition_id=? AND sort_key>? AND sort_key<?)"),
        ("entries_reverse", "(definition_id=? AND sort_key>? AND sort_key<?)"),
        ("row", "(document_uri=? AND item_id=?)"),
        ("pending", "outbox_incomplete (document_uri=?)"),
        ("incomplete", "outbox_quantum"),
        ("forget", "outbox_completed (completed_at>? AND completed_at<?)"),
    ],
)
def test_statements_search(connection: sqlite3.Connection, name: str, searched: str):
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", [None] * SQL[name].count("?"))]
    assert any("SEARCH" in line and searched in line for line in plan), plan
    assert not any(line.startswith("SCAN") or "TEMP B-TREE" in line for line in plan), plan
