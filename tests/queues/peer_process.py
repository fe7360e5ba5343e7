"""One of several processes on a queue on Cassandra: python -m tests.queues.peer_process CONFIG MODE NAME"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from everlog.config import CassandraConfig
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.queue import Queue
from tests.models.queue_process import limited, say

MODES = {"limited": limited}


async def main(config: str, mode: str, name: str) -> None:
    settings = msgspec.json.decode(config, type=CassandraConfig)
    store = CassandraQueueStore(settings, name=name, host="127.0.0.1")
    queue = Queue("jobs", store)
    await queue.declaration()
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    await MODES[mode](queue, 5)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
