"""A declared queue of three shards that three stores share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from everlog.queues.operations import AskStats
from everlog.queues.queue import Queue


async def check_shards(stores: Sequence[Any]) -> None:
    """Keys stay in their shard whoever puts them; counts, pages and claims are of the whole queue."""
    one, two, three = (Queue("jobs", store) for store in stores)
    await stores[0]._shards.pop(("jobs", 1)).close()
    await stores[1]._shard("jobs", 1).execute(AskStats(), 1)  # the second owns the second shard
    for number in range(60):
        queue = (one, two, three)[number % 3]
        assert (await queue.put(f"k{number}", priority=number % 5)).result == "CREATED"
        assert (await three.put(f"k{number}", priority=200)).result == "MERGED"
    assert stores[1]._shards["jobs", 1]._owner is not None
    assert (await two.stats()).ready == 60
    listed = [info.key async for info in three.jobs(7)]
    assert len(set(listed)) == len(listed) == 60
    assert [info.priority async for info in three.jobs(7)] == sorted(number % 5 for number in range(60))
    assert await two.pause()
    assert await one.claim(5) == []
    assert await three.resume()
    (first,) = await one.claim(1)
    assert first.priority == 0
    jobs = [first, *await three.claim(1000)]
    assert {job.key for job in jobs} == set(listed)
    assert len({job.entry for job in jobs}) == 60
    await asyncio.gather(*(two.done(job.handle) for job in jobs[:59]))
    await two.fail(jobs[59].handle, "broken", retry=False)
    (letter,) = await one.dead()
    assert [flag.reason for flag in await three.flags()] == ["failed"]
    for store in stores[:2]:
        await store.close()
    assert [dead.entry for dead in await three.dead()] == [letter.entry]  # not once per shard
    assert (await three.revive(letter.entry)).result == "CREATED"
    assert (await three.stats()).ready == 1
