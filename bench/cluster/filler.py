"""Fill a topic of Kafka in bulk: the records that appends would write, produced without waiting for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Producer

from bench.cluster.servers import TOPIC
from bench.payloads import Payload
from bench.records import Records
from everlog.api import Everlog
from everlog.core.actions import ACTION_HEADER
from everlog.journal.reader import Ref
from everlog.log.kafka.client import producer_settings

HOW = "in bulk, journals in turns, produced without waiting for each"
FLUSH_S = 60.0
POLL_EVERY = 1_000


@dataclass(slots=True)
class Filler:
    """Appends to journals of one topic; goes on later where it stopped. No other writer may use the topic."""

    log: Everlog
    seed: int
    payloads: Sequence[Payload]
    per_append: int = 1
    names: list[str] = field(default_factory=list)
    ref: Ref = field(init=False)
    _records: Records = field(init=False)

    async def open(self, journals: int) -> None:
        """Create the topic, and choose the journals."""
        self.names = [f"order-{number}" for number in range(journals)]
        ref = await self.log.journal(TOPIC).ref(self.names[0], create=True)
        assert ref is not None
        self.ref = ref
        self._records = Records(ref.topic, self.names, self.payloads, self.seed, self.per_append, in_turns=True)

    async def fill(self, appends: int) -> None:
        """Write this number of records; they must get the offsets that their life and their ids are made of."""
        self._produce(appends)
        for partition, end in self._records.ends.items():
            found = await self.log.parts.log.end(self.ref.log_topic, partition, reach=end)
            if found != end:
                raise RuntimeError(f"partition {partition} ends at {found}, not at {end}: another writer used it")

    def _produce(self, appends: int) -> None:
        problems: list[str] = []
        settings = producer_settings(self.log.config) | {"linger.ms": 20, "queue.buffering.max.messages": 100_000}
        # In order, and no reports but of errors: the ends say the rest.
        producer = Producer(settings | {"delivery.report.only.error": True})
        for number, record in enumerate(self._records.make(appends)):
            headers: dict[str, str | bytes | None] = {ACTION_HEADER: record.action}
            while True:
                try:
                    producer.produce(
                        self.ref.topic.name,
                        record.value,
                        record.key,
                        record.partition,
                        on_delivery=lambda error, _: problems.append(str(error)),
                        timestamp=record.timestamp,
                        headers=headers,
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % POLL_EVERY == 0:
                producer.poll(0)
        left = producer.flush(FLUSH_S)
        if left or problems:
            raise RuntimeError(f"the log was not filled: {left} records are left, {problems[:3]}")
