"""What the source `events(topic)` must do, on whatever log and store, however far replication is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest

from everlog.api import Everlog
from everlog.core.actions import ActionRange, Append, encode_action, wrap_header_data
from everlog.core.codec import EventData, encode_value
from everlog.core.events import Event
from everlog.core.record import NewRecord
from everlog.errors import Conflict
from everlog.journal.parts import JournalParts
from everlog.projections.event_source import EventFeed, events
from everlog.projections.offsets import Offset, merge
from everlog.projections.source import Delivery
from everlog.testing.journal_support import BROKEN, CONDITIONS, produce
from everlog.testing.replication import replicate

TOPIC = "t"
IDS = ("a", "b", "c", "d")
PATIENCE_S = 60.0


class DeliveredEvent(NamedTuple):
    """An event as a source gave it, or must give it: the partition and the offset at which it took effect."""

    partition: int
    offset: int
    id: str
    seq_nr: int
    payload: Any


class _Sent(NamedTuple):
    offset: int
    first: int = 0
    payloads: Sequence[str] = ()
    broken: bool = False


@dataclass
class _Life:
    seq_nr: int = 0
    waiting: list[_Sent] | None = None


@dataclass
class TopicModel:
    """Journals as one would write them down: no fold, no store."""

    partitions: Mapping[str, int]
    lives: dict[str, _Life] = field(default_factory=dict)
    came: list[DeliveredEvent] = field(default_factory=list)

    def life(self, journal_id: str) -> _Life:
        return self.lives.setdefault(journal_id, _Life())

    def send(self, journal_id: str, sent: _Sent) -> None:
        life = self.life(journal_id)
        if life.waiting is not None:
            life.waiting.append(sent)
        elif sent.broken:
            life.waiting = [sent]
        else:
            self._apply(journal_id, sent, sent.offset)

    def _apply(self, journal_id: str, sent: _Sent, offset: int) -> None:
        life, partition = self.life(journal_id), self.partitions[journal_id]
        if sent.payloads and sent.first > life.seq_nr:
            for number, payload in enumerate(sent.payloads, sent.first):
                self.came.append(DeliveredEvent(partition, offset, journal_id, number, payload))
                life.seq_nr = number

    def purge(self, journal_id: str) -> None:
        self.lives[journal_id] = _Life()

    def resume(self, journal_id: str, offset: int, *, skip: bool) -> None:
        life = self.life(journal_id)
        waiting, life.waiting = life.waiting or [], None
        for at, sent in enumerate(waiting):
            if sent.broken and not (skip and at == 0):
                life.waiting = waiting[at:]
                return
            if not sent.broken:
                self._apply(journal_id, sent, offset)

    def expected(self, partition: int) -> list[DeliveredEvent]:
        return sorted((one for one in self.came if one.partition == partition), key=lambda one: one.offset)


def raw_append(first: int, payloads: Sequence[str]) -> tuple[bytes, bytes]:
    """An append as other programs send it, without an expectation."""
    found = [EventData(number, (), "text", payload) for number, payload in enumerate(payloads, first)]
    payload_type, value = encode_value(found)
    action = Append(
        range=ActionRange(first, first + len(payloads) - 1), payload_type=payload_type, metadata=wrap_header_data(None)
    )
    return encode_action(action), value


class TopicHistory:
    """Sends records, and the same to the model."""

    def __init__(self, log: Everlog, model: TopicModel) -> None:
        self.log = log
        self.model = model
        self.sent = 0

    @classmethod
    async def begin(cls, log: Everlog) -> TopicHistory:
        refs = {journal_id: await log.journal(TOPIC).ref(journal_id, create=True) for journal_id in IDS}
        return cls(log, TopicModel({journal_id: ref.partition for journal_id, ref in refs.items() if ref is not None}))

    async def append(self, journal_id: str, first: int, count: int = 1) -> None:
        """As another program would: one that is not above the journal's seqNr is a fork, and loses."""
        self.sent += 1
        payloads = [f"{journal_id}{self.sent}.{number}" for number in range(count)]
        offset = await produce(self.log, journal_id, *raw_append(first, payloads), topic=TOPIC)
        self.model.send(journal_id, _Sent(offset, first, payloads))

    async def race(self, journal_id: str) -> None:
        """Two writers expect the same: one of them loses, or both where another life has begun meanwhile."""
        self.sent += 1
        journal, seq_nr = self.log.journal(TOPIC), self.model.life(journal_id).seq_nr
        payloads = [f"{journal_id}{self.sent}.{number}" for number in range(2)]
        results = await asyncio.gather(
            *(journal.append(journal_id, Event(payload), expected=seq_nr) for payload in payloads),
            return_exceptions=True,
        )
        assert any(isinstance(result, Conflict) for result in results), results
        for token, payload in zip(results, payloads, strict=True):
            if not isinstance(token, BaseException):
                self.model.send(journal_id, _Sent(token.offset, seq_nr + 1, [payload]))
            elif not isinstance(token, Conflict):
                raise token

    async def halt(self, journal_id: str) -> None:
        """A record that cannot be decoded."""
        self.sent += 1
        offset = await produce(self.log, journal_id, BROKEN, str(self.sent).encode(), topic=TOPIC)
        self.model.send(journal_id, _Sent(offset, broken=True))

    async def delete(self, journal_id: str, to: int) -> None:
        offset = await produce(self.log, journal_id, b'{"delete":{"to":%d,"ifExists":true}}' % to, topic=TOPIC)
        self.model.send(journal_id, _Sent(offset))

    async def purge(self, journal_id: str) -> None:
        await produce(self.log, journal_id, b'{"purge":{}}', topic=TOPIC)
        self.model.purge(journal_id)

    async def resume(self, journal_id: str, *, skip: bool) -> None:
        if self.model.life(journal_id).waiting is None:
            return
        command = self.log.quarantine.skip if skip else self.log.quarantine.retry
        position = await command(TOPIC, journal_id)
        self.model.resume(journal_id, position.offset, skip=skip)

    async def stray(self) -> None:
        """Records that belong to no journal: in the wrong partition, under a key that is no text, without an action."""
        ref = await self.log.journal(TOPIC).ref("a", create=True)
        assert ref is not None
        action, value = raw_append(1, ["stray"])
        for partition in range(ref.topic.partitions):
            for key, header in ((b"\xff", action), (ref.key, None), (None, action)):
                record = NewRecord(partition, self.log.parts.clock.now_ms(), key, header, value)
                await self.log.parts.log.append(ref.log_topic, record)
            if partition != ref.partition:
                record = NewRecord(partition, self.log.parts.clock.now_ms(), ref.key, action, value)
                await self.log.parts.log.append(ref.log_topic, record)

    async def step(self, random: Random) -> None:
        """Anything."""
        journal_id = random.choice(IDS)
        life = self.model.life(journal_id)
        kind = random.choices(
            ("append", "fork", "race", "halt", "delete", "purge", "retry", "skip", "mark"),
            (8, 3, 2, 2, 2, 2, 2, 3, 1),
        )[0]
        if kind in ("append", "fork"):
            first = life.seq_nr + 1 if kind == "append" else max(1, life.seq_nr - random.randrange(3))
            await self.append(journal_id, first, random.randint(1, 3))
        elif kind == "race":
            if life.waiting is None:
                await self.race(journal_id)
        elif kind == "halt":
            await self.halt(journal_id)
        elif kind == "delete":
            await self.delete(journal_id, random.randint(1, life.seq_nr + 1))
        elif kind == "purge":
            await self.purge(journal_id)
        elif kind == "mark":
            await self.log.journal(TOPIC).mark(journal_id)
        else:
            await self.resume(journal_id, skip=kind == "skip")


def came(delivery: Delivery) -> DeliveredEvent:
    event = delivery.envelope
    return DeliveredEvent(event.position.partition, event.position.offset, event.id, event.seq_nr, event.payload)


class TopicReader:
    """Reads the source from stored offsets, as a projection does; may stop anywhere and go on from there."""

    def __init__(self, parts: JournalParts, topic: str = TOPIC) -> None:
        self.came: list[DeliveredEvent] = []
        self.stored: Offset | None = None
        self._parts = parts
        self._topic = topic

    async def read(self, ends: Mapping[int, int], *, limit: int | None = None) -> None:
        """Up to these ends of the partitions, or at most `limit` deliveries."""
        feed = events(self._topic).open(self._parts)
        assert isinstance(feed, EventFeed)
        (key,) = await feed.keys()
        taken = 0
        left = {partition: end for partition, end in ends.items() if not self._reached(feed, partition, end)}
        try:
            async with asyncio.timeout(PATIENCE_S), aclosing(feed.read(key, self.stored)) as pages:  # type: ignore[type-var]
                while left and (limit is None or taken < limit):
                    for delivery in await anext(pages):
                        self.take(delivery)
                        taken += 1
                        for (_, partition), offset in (delivery.positions or {}).items():
                            if offset >= left.get(partition, offset + 2) - 1:
                                del left[partition]
                        if limit is not None and taken >= limit:
                            break
        finally:
            await feed.close()

    def _reached(self, feed: EventFeed, partition: int, end: int) -> bool:
        return feed._place(partition, self.stored) >= end - 1

    def take(self, delivery: Delivery) -> None:
        assert delivery.offset is not None
        self.stored = merge(self.stored, delivery.offset)
        if not delivery.passed:
            self.came.append(came(delivery))

    def of(self, partition: int) -> list[DeliveredEvent]:
        return [one for one in self.came if one.partition == partition]


async def log_ends(log: Everlog, topic: str = TOPIC) -> dict[int, int]:
    found = await log.parts.log.topic(log.config.journal.topic_prefix + topic)
    assert found is not None
    return {partition: (await log.parts.log.bounds(found, partition)).end for partition in range(found.partitions)}


async def check(history: TopicHistory, reader: TopicReader) -> None:
    """The source gives what the model says: each once, in order per partition, and nothing else."""
    ends = await log_ends(history.log)
    await reader.read(ends)
    for partition in ends:
        assert reader.of(partition) == history.model.expected(partition)


async def settle_randomly(log: Everlog, random: Random) -> None:
    """A batch of the pipeline: of any size, perhaps a replay, perhaps killed before it is published."""
    start = random.choice([None, None, None, random.randrange(10)])
    await replicate(log, batch=random.randint(1, 4), batches=1, start=start, publish=random.random() < 0.8)


class TopicEventsConformance:
    """Subclass it and provide the fixture `everlog`: open, empty, with small pages if it can be.

    A backend that takes long may run a part: a test of its own for some of the conditions, around the same check.
    """

    pytestmark = pytest.mark.asyncio

    async def story(self, history: TopicHistory, condition: str) -> None:
        """Conflicts, forks, a life that ends, one that waits and is taken up again, one that is released by a purge."""
        log = history.log
        await history.stray()
        await history.append("a", 1, 3)
        await history.race("a")
        await history.append("a", 2)  # a fork
        await history.delete("a", 2)
        await history.purge("a")
        await history.append("a", 1, 2)  # a new life
        await CONDITIONS[condition](log)
        for journal_id in ("b", "c"):
            await history.append(journal_id, 1)
            await history.halt(journal_id)
            await history.append(journal_id, 2, 2)
            await history.append(journal_id, 2)  # a fork, once it is taken up
        await CONDITIONS[condition](log)
        await history.resume("b", skip=False)  # it halts again
        await history.append("b", 4)
        await history.resume("b", skip=True)
        await history.purge("c")
        await history.append("c", 1)
        await CONDITIONS[condition](log)

    async def come_once(self, everlog: Everlog, condition: str) -> None:
        """All at once, and one delivery at a time with a new start for each."""
        history = await TopicHistory.begin(everlog)
        await self.story(history, condition)
        await check(history, TopicReader(everlog.parts))
        slow = TopicReader(everlog.parts)
        while len(slow.came) < len(history.model.came):
            await slow.read(await log_ends(everlog), limit=1)
        await check(history, slow)

    @pytest.mark.parametrize("condition", CONDITIONS)
    async def test_events_that_count_come_once(self, everlog: Everlog, condition: str) -> None:
        await self.come_once(everlog, condition)

    @pytest.mark.parametrize("seed", range(3))
    async def test_random_histories(self, everlog: Everlog, seed: int) -> None:
        await self.random_history(everlog, seed)

    async def random_history(self, everlog: Everlog, seed: int) -> None:
        """A reader that stops and goes on anywhere, next to a pipeline that does; and one from the beginning."""
        random = Random(seed)
        history = await TopicHistory.begin(everlog)
        going_on = TopicReader(everlog.parts)
        for _ in range(60):
            await history.step(random)
            if random.random() < 0.3:
                await settle_randomly(everlog, random)
            if random.random() < 0.2:
                await going_on.read(await log_ends(everlog), limit=random.choice([1, 2, 7, None]))
        await check(history, going_on)
        await check(history, TopicReader(everlog.parts))
        await replicate(everlog)
        await check(history, TopicReader(everlog.parts))
