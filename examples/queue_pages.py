"""Re-index a page after a burst of edits: forty edits of three pages are three runs, each with the last edit.

python examples/queue_pages.py [folder]
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile

import everlog
from everlog import Job, Priority

PAGES = ("home", "news", "about")
indexed: dict[str, list[int]] = {page: [] for page in PAGES}


@everlog.job("pages", timeout="1m")
async def index(job: Job) -> None:
    """Slow enough that edits arrive while it runs."""
    await asyncio.sleep(0.05)
    indexed[str(job.key)].append(job.data["edit"])


async def edit(log: everlog.Everlog, chance: random.Random) -> dict[str, int]:
    """Forty edits within a moment. Each pushes the run back a little, but never beyond `max_wait`."""
    last: dict[str, int] = {}
    for number in range(40):
        page = chance.choice(PAGES)
        last[page] = number
        priority = Priority.NEW_PAGE if page == "news" else Priority.UPDATES
        await log.queue("pages").put(page, {"edit": number}, delay="500ms", priority=priority)
    return last


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        queue = log.queue("pages")
        await queue.declare(max_wait="2s")
        worker = log.worker(index)
        working = asyncio.create_task(worker.run())
        last = await edit(log, random.Random(7))
        while any(not indexed[page] or indexed[page][-1] != number for page, number in last.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        worker.stop()
        await working
        runs = sum(len(found) for found in indexed.values())
        print(f"40 edits of {len(last)} pages, {'fewer than 10' if runs < 10 else runs} runs")
        for page in PAGES:
            print(f"{page}: indexed with edit {indexed[page][-1]}, the last one")
        print(f"dead letters: {len(await queue.dead())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
