"""Reading one journal's tail must not cost what the other journals wrote: SQLite is told which index to use."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from everlog.log.sqlite.appender import SQL
from everlog.log.sqlite.log import FILE


@pytest.mark.parametrize(("statement", "values"), [("tail", 6), ("previous", 3)])
async def test_a_key_is_looked_up_by_its_index(small_log, statement, values) -> None:
    await small_log.parts.log.create_topic("orders")
    with closing(sqlite3.connect(f"{small_log.config.data}/{FILE}")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {SQL[statement]}", [1] * values).fetchall()
    assert all("record_key (topic=? AND partition=? AND key=?" in step[3] for step in plan), plan
