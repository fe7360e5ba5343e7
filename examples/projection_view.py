"""A view of what customers owe, kept exactly once in SQLite, and read right after writing.

python examples/projection_view.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from typing import Any

import everlog
from everlog import AcceptedEvent, Event, events, exactly_once, projection

TABLE = "CREATE TABLE IF NOT EXISTS owed (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL)"
ADD = "INSERT INTO owed VALUES (?1, ?2) ON CONFLICT (customer) DO UPDATE SET cents = cents + ?2"


@projection("owed", source=events("invoices"), strategy=exactly_once())
async def owed(event: AcceptedEvent, view: Any) -> None:
    """Rows and offset are stored together: a crash at any point counts no invoice twice."""
    await view.execute(ADD, event.id, event.payload["cents"])


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        view, invoices = log.projections.view("owed"), log.journal("invoices")
        await view.execute(TABLE)
        async with log.projections.run(owed):
            for number in range(1, 11):
                await invoices.append("alice", Event({"cents": number * 100}))
                token = await invoices.append("bob", Event({"cents": 250}))
            (row,) = await view.fetch("SELECT cents FROM owed WHERE customer = ?", "bob", after=token)
            print(f"bob owes {row[0]} cents")

        # No process runs it now. What comes meanwhile waits, and the lag says so.
        token = await invoices.append("alice", Event({"cents": -5500}))
        status = await log.projections.get("owed")
        print(f"{status.lag.events if status.lag else '?'} record waits")
        async with log.projections.run(owed):
            (row,) = await view.fetch("SELECT cents FROM owed WHERE customer = ?", "alice", after=token)
            print(f"alice owes {row[0]} cents")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
