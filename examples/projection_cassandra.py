"""A view of what customers owe by region, kept exactly once in Cassandra, and read right after writing.

everlog cluster up
python examples/projection_cassandra.py everlog.toml
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import everlog
from everlog import AcceptedEvent, Event, events, exactly_once, projection

# `everlog_mark` is where rows and offset meet: one for each region, because Cassandra changes a partition as a whole.
TABLE = """
CREATE TABLE IF NOT EXISTS owed (
    region       text,
    customer     text,
    cents        bigint,
    everlog_mark text static,
    PRIMARY KEY (region, customer)
)
"""
READ = "SELECT cents FROM owed WHERE region = ? AND customer = ?"
WRITE = "UPDATE owed SET cents = ? WHERE region = ? AND customer = ?"


@projection("owed", source=events("invoices"), strategy=exactly_once(), tables=["owed"])
async def owed(event: AcceptedEvent, view: Any) -> None:
    """Cassandra cannot add, so the handler reads first; no other process changes the region between the two."""
    invoice = event.payload
    rows = await view.fetch(READ, invoice["region"], event.id)
    cents = (rows[0][0] or 0) if rows else 0
    await view.execute(WRITE, cents + invoice["cents"], invoice["region"], event.id)


async def main(config: str) -> None:
    async with everlog.connect(config) as log:
        view, invoices = log.projections.view("owed"), log.journal("invoices")
        await view.execute(TABLE)
        async with log.projections.run(owed):
            for number in range(1, 11):
                await invoices.append("alice", Event({"region": "eu", "cents": number * 100}))
                token = await invoices.append("bob", Event({"region": "us", "cents": 250}))
            (row,) = await view.fetch(READ, "us", "bob", after=token)
            print(f"bob owes {row[0]} cents")

        token = await invoices.append("alice", Event({"region": "eu", "cents": -5500}))
        async with log.projections.run(owed):
            (row,) = await view.fetch(READ, "eu", "alice", after=token)
            print(f"alice owes {row[0]} cents")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
