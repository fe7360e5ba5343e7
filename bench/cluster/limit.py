"""The limit: the event rows that the pipeline would write, straight from the driver. No Spark, no log, no heads.

Each process makes its rows beforehand, with the fold itself; only binding, sending, and waiting for the answers is
measured. Batches hold the rows of one journal, as the pipeline's do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from acsylla.errors import CassException

from bench.cluster.processor import Usage
from bench.cluster.servers import TOPIC, Servers
from bench.cluster.settings import Settings
from bench.payloads import make_payloads
from bench.records import Records
from bench.rounds import Round
from everlog.cassandra.session import connect, make_batch
from everlog.cassandra.values import timestamp
from everlog.config import CassandraConfig, Config
from everlog.core.entry import Entry, decode
from everlog.core.events import EventRecord
from everlog.core.fold import fold
from everlog.core.head import Topic
from everlog.log.port import LogTopic
from everlog.store.cassandra.rows import NO_METADATA
from everlog.store.cassandra.store import CassandraStore

START_S = 120.0
RUN_S = 600.0
ATTEMPTS = 10

# The columns that events with a JSON payload have; the store leaves out the others, too.
PUT_ROW = """
INSERT INTO {keyspace}.journal (id, topic, segment, seq_nr, timestamp, partition, offset, metadata, origin, version,
    meta_record_id, append_id, payload_type, payload_txt)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?
"""

Values = list[Any]


@dataclass(frozen=True, slots=True)
class Share:
    """What one process writes."""

    cassandra: CassandraConfig
    topic: Topic
    names: tuple[str, ...]
    rows: int
    per_batch: int
    in_flight: int
    payload_bytes: int
    seed: int


@dataclass(slots=True)
class Limit:
    """Rounds of writing rows in batches, from several processes at once."""

    settings: Settings
    servers: Servers
    rows: int
    per_batch: int
    used: list[Usage] = field(default_factory=list)

    @property
    def name(self) -> str:
        how = f"{self.per_batch} rows a batch" if self.per_batch > 1 else "row by row"
        return f"the driver, {how}, {self.settings.limit_processes} processes"

    def round(self) -> Round:
        with self.servers.fresh("limit") as config:
            shares = list(self._shares(config, asyncio.run(_topic(config))))
            spans = self._run(shares)
            asyncio.run(_check(shares))
        written = self.used[-1].operations = sum(share.rows for share in shares)
        return Round(written, max(end for _, end in spans) - min(start for start, _ in spans))

    def _shares(self, config: Config, topic: Topic) -> Iterator[Share]:
        assert config.cassandra is not None
        settings, processes = self.settings, self.settings.limit_processes
        for number in range(processes):
            names = tuple(f"order-{key}" for key in range(number, settings.keys, processes))
            turns = max(1, self.rows // processes // len(names) // self.per_batch)
            yield Share(
                cassandra=config.cassandra,
                topic=topic,
                names=names,
                rows=turns * len(names) * self.per_batch,
                per_batch=self.per_batch,
                in_flight=settings.limit_in_flight,
                payload_bytes=settings.payload_bytes,
                seed=settings.seed + number,
            )

    def _run(self, shares: Sequence[Share]) -> list[tuple[float, float]]:
        """When each process began and ended to write; they begin together, when all have their rows."""
        context = multiprocessing.get_context("spawn")
        running = []
        try:
            for share in shares:
                near, far = context.Pipe()
                process = context.Process(target=_process, args=(share, far), daemon=True)
                process.start()
                far.close()
                running.append((process, near))
            for _, near in running:
                _receive(near, START_S)
            with self.servers.processor.watch() as usage:
                for _, near in running:
                    near.send("go")
                spans = [_receive(near, RUN_S) for _, near in running]
            self.used.append(usage)
            return spans
        finally:
            for process, _ in running:
                process.join(1)
                process.kill()


async def _topic(config: Config) -> Topic:
    """The tables, made by Everlog itself, and a topic for them that is not in the log."""
    assert config.cassandra is not None
    store = await CassandraStore.open(config.cassandra)
    try:
        topic = LogTopic(config.journal.topic_prefix + TOPIC, "none", config.log.partitions)
        base = time.time_ns() // 1_000
        return await store.pin(topic, segment_size=config.journal.segment_size, base=base)
    finally:
        await store.close()


def _receive(near: Connection, seconds: float) -> Any:
    if not near.poll(seconds):
        raise RuntimeError(f"a process that writes did not answer within {seconds:g} s")
    found = near.recv()
    if isinstance(found, Exception):
        raise RuntimeError(f"a process that writes failed: {found!r}")
    return found


def _process(share: Share, far: Connection) -> None:
    try:
        asyncio.run(_write(share, far))
    except Exception as error:
        far.send(RuntimeError(f"{type(error).__name__}: {error}"))


async def _write(share: Share, far: Connection) -> None:
    batches = _batches(share)
    session = await connect(share.cassandra)
    try:
        prepared = await session.prepare(PUT_ROW.format(keyspace=share.cassandra.keyspace))
        source = iter(batches)
        # The driver itself, with the connection that Everlog would use.
        raw = session._raw

        async def work() -> None:
            for rows in source:
                bound = [prepared.bind(values) for values in rows]
                await _send(raw, bound[0] if len(bound) == 1 else make_batch(bound), batch=len(bound) > 1)

        far.send("ready")
        await asyncio.to_thread(far.recv)
        started = time.monotonic()
        await asyncio.gather(*(work() for _ in range(share.in_flight)))
        far.send((started, time.monotonic()))
    finally:
        await session.close()


async def _send(raw: Any, request: Any, *, batch: bool) -> None:
    """A busy machine lets a request time out now and then; that must not end the measurement."""
    for attempt in range(ATTEMPTS):
        try:
            await (raw.execute_batch(request) if batch else raw.execute(request))
        except CassException:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def _batches(share: Share) -> list[list[Values]]:
    """The rows' values, journal by journal in turns, a batch each."""
    payloads = make_payloads(1_000, share.payload_bytes, share.seed)
    records = Records(share.topic, share.names, payloads, share.seed, in_turns=True)
    entries: dict[str, list[Entry]] = {name: [] for name in share.names}
    for record in records.make(share.rows):
        assert record.key is not None
        entries[record.key.decode()].append(decode(record))
    journals = [
        [_values(share.topic, name, row) for row in fold(None, found, share.topic).rows]
        for name, found in entries.items()
    ]
    random.Random(share.seed).shuffle(journals)
    turns = range(0, share.rows // len(share.names), share.per_batch)
    return [rows[first : first + share.per_batch] for first in turns for rows in journals]


def _values(topic: Topic, name: str, row: EventRecord) -> Values:
    """In the order of PUT_ROW; all rows are in the first segment."""
    place = [name, topic.name, 0, row.seq_nr, timestamp(row.timestamp), row.partition, row.offset]
    found = [row.metadata_json or NO_METADATA, row.origin, row.version, row.record_id, row.append_id]
    return [*place, *found, row.payload_type, row.data, topic.base + row.offset]


async def _check(shares: Sequence[Share]) -> None:
    """What was acknowledged must be there."""
    for share in shares:
        session = await connect(share.cassandra)
        try:
            found = await count_rows(session, share.cassandra.keyspace, share.topic.name, share.names)
        finally:
            await session.close()
        if found != share.rows:
            raise RuntimeError(f"{share.rows:,} rows were written, but the table holds {found:,}")


async def count_rows(session: Any, keyspace: str, topic: str, names: Sequence[str]) -> int:
    """How many event rows these journals have; all are in their first segment."""
    cql = f"SELECT count(*) FROM {keyspace}.journal WHERE id = ? AND topic = ? AND segment = 0"
    source, total = iter(names), 0

    async def work() -> None:
        nonlocal total
        for name in source:
            ((count,),) = await session.fetch(cql, name, topic)
            total += count

    await asyncio.gather(*(work() for _ in range(32)))
    return total
