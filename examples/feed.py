"""A feed of events by tag that remembers where it was: each run goes on after the last one, and misses nothing.

python examples/feed.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import everlog
from everlog import Event, TaggedEvent
from everlog.testing import replicate  # stands in for the pipeline: `everlog up` in another terminal


class Bookmark:
    """How far the feed has got: the last event's offset, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self) -> str | None:
        return self._file.read_text() if self._file.exists() else None

    def save(self, event: TaggedEvent) -> None:
        self._file.write_text(str(event.offset))


async def deliver(log: everlog.Everlog, bookmark: Bookmark) -> int:
    """Print what is new, and write down how far we got after every event."""
    count = 0
    async for event in log.tag("eu").current(after=bookmark.load()):
        print(f"  {event.id}: {event.payload}")
        bookmark.save(event)
        count += 1
    return count


async def main(folder: str) -> None:
    bookmark = Bookmark(Path(folder) / "feed.offset")
    async with everlog.connect(folder) as log:
        orders = log.journal("orders")
        for day in ("Monday", "Tuesday"):
            await orders.append("o-1", [Event(f"placed on {day}", tags={"eu"})])
            await orders.append("o-2", [Event(f"placed on {day}", tags={"us"})])
            await replicate(log)
            print(day)
            print(f"  {await deliver(log, bookmark)} new")
        print("once more")
        print(f"  {await deliver(log, bookmark)} new")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
