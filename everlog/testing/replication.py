"""The pipeline's steps without Spark, for tests: the same grouping, fold, writes and publish, in this process."""

from __future__ import annotations

from everlog.client import Everlog
from everlog.errors import ReplicationFailed
from everlog.journal.head import Topic
from everlog.log.base import Log, LogTopic, Record
from everlog.pipeline.apply import Applied, Grouped, apply

MAX_RECORDS = 1_000_000_000


async def replicate(
    log: Everlog, *, batch: int | None = None, leave: int = 0, publish: bool = True, batches: int | None = None
) -> list[Applied]:
    """Apply what is not replicated yet, in micro-batches of at most `batch` offsets per partition.

    `leave`: so many of the newest records of each partition stay un-replicated. `publish=False`: stop before
    pointer2 moves, as a pipeline does that dies there. `batches`: stop after so many.
    """
    done: list[Applied] = []
    while batches is None or batches > 0:
        results, pointers = await _one_batch(log, batch or MAX_RECORDS, leave)
        done += results
        failed = {key: reason for result in results for key, reason in result.failed.items()}
        if failed:
            raise ReplicationFailed(f"nothing of this batch was published: {failed}")
        if not pointers or not publish:
            return done
        await log.parts.store.publish(pointers, log.parts.clock.now_ms())
        batches = None if batches is None else batches - 1
    return done


async def _one_batch(log: Everlog, batch: int, leave: int) -> tuple[list[Applied], dict[tuple[str, int], int]]:
    """One micro-batch over all partitions of all topics: what was done, and the pointers to publish."""
    parts = log.parts
    results: list[Applied] = []
    pointers: dict[tuple[str, int], int] = {}
    for found in await parts.log.topics():
        if not found.name.startswith(parts.config.journal.topic_prefix):
            continue
        size = parts.config.journal.segment_size
        topic = await parts.store.pin(found, segment_size=size, base=parts.clock.now_ms() * 1000)
        for partition in range(topic.partitions):
            pointer = await parts.store.pointer(topic.name, partition)
            end = (await parts.log.bounds(found, partition)).end - leave
            end = min(end, pointer + 1 + batch)
            if end > pointer + 1:
                results.append(await apply_range(log, topic, found, partition, after=pointer, before=end))
                pointers[topic.name, partition] = end - 1
    return results, pointers


async def apply_range(
    log: Everlog, topic: Topic, found: LogTopic, partition: int, *, after: int, before: int
) -> Applied:
    """Apply the records with `after < offset < before`, which may have been applied already: a replay."""
    grouped = Grouped()
    grouped.add(topic, await records_between(log.parts.log, found, partition, after=after, before=before))
    return await apply(log.parts.store, topic, partition, grouped)


async def records_between(log: Log, topic: LogTopic, partition: int, *, after: int, before: int) -> list[Record]:
    """All records of a range that have a key, in order; read key by key, as a log offers no other way."""
    records: list[Record] = []
    for key in await log.tail_keys(topic, partition, after=after, before=before):
        records += await log.tail(topic, partition, key, after=after, before=before, limit=MAX_RECORDS)
    return sorted(records, key=lambda record: record.offset)
