"""A process that uses a queue on Cassandra: python -m tests.queues.owner_process CONFIG NAME HOST

CONFIG is the `[cassandra]` part of a configuration as JSON. It says what was acknowledged, a JSON line each. With a
HOST it reaches the owner and can be reached; with "-" it works only while it owns the queue itself.
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec

from everlog.config import CassandraConfig
from everlog.errors import EverlogError
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.queue import Queue


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def work(queue: Queue, key: str) -> None:
    say("putting", key)
    await queue.put(key)
    say("put", key)
    for job in await queue.claim(2):
        say("claimed", job.key, job.entry, job.token)
        say("finishing", job.key)
        await job.done()
        say("done", job.key)


async def main(config: str, name: str, host: str) -> None:
    settings = msgspec.json.decode(config, type=CassandraConfig)
    store = CassandraQueueStore(
        settings,
        name=name,
        beat_s=0.2,
        takeover_s=1.0,
        segment_records=40,
        host=None if host == "-" else host,
    )
    queue = Queue("jobs", store)
    for number in range(1_000_000):
        try:
            await work(queue, f"{name}-{number}")
        except EverlogError as error:
            say("error", type(error).__name__)
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
