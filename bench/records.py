"""The records that appends would write, made in bulk: same codecs, same expectation and id that a client sends.

Appends wait for the log and for their verdict; hundreds of thousands of them would take longer than what is measured.
Only the way of these records into the log is shorter, see `bench.filler` and `bench.cluster.filler`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.payloads import Payload
from everlog.core.actions import ActionRange, Append, Expected, encode_action, wrap_header_data
from everlog.core.codec import EventData, encode_value
from everlog.core.events import PayloadType, encode_payload
from everlog.core.head import Topic
from everlog.core.record import Record
from everlog.core.values import partition_of
from everlog.version import __version__

ORIGIN = "bench"

Encoded = tuple[PayloadType | None, str | bytes | None]


@dataclass(slots=True)
class _Journal:
    """One journal, and what its next append expects."""

    key: bytes
    partition: int
    seq_nr: int = 0
    life: str | None = None


@dataclass(slots=True)
class Records:
    """Appends to journals of one topic; goes on later where it stopped. No other writer may use the topic meanwhile.

    `ends` are the offsets that the log gives out next. Journals come in random order, or `in_turns`: each once, in a
    random order, then each once again in another one. `tags` are those of the first event, the second, and so on,
    over and over.
    """

    topic: Topic
    names: Sequence[str]
    payloads: Sequence[Payload]
    seed: int
    per_append: int = 1
    in_turns: bool = False
    tags: Sequence[tuple[str, ...]] = ((),)
    ends: dict[int, int] = field(default_factory=dict)
    _journals: list[_Journal] = field(default_factory=list)
    _order: Iterator[_Journal] = field(default_factory=lambda: iter(()))

    def __post_init__(self) -> None:
        partitions = self.topic.partitions
        keys = [name.encode() for name in self.names]
        self._journals = [_Journal(key, partition_of(key, partitions)) for key in keys]
        self._order = self._turns() if self.in_turns else self._chosen()

    def _chosen(self) -> Iterator[_Journal]:
        source = random.Random(self.seed)
        while True:
            yield source.choice(self._journals)

    def _turns(self) -> Iterator[_Journal]:
        source = random.Random(self.seed)
        while True:
            yield from source.sample(self._journals, len(self._journals))

    def make(self, appends: int) -> Iterator[Record]:
        """The records of as many appends, in the order in which the log must take them."""
        encoded = [encode_payload(payload) for payload in self.payloads]
        number = 0
        for _ in range(appends):
            journal = next(self._order)
            payloads = [encoded[at % len(encoded)] for at in range(number, number + self.per_append)]
            number += self.per_append
            yield self._append(journal, payloads)

    def _append(self, journal: _Journal, payloads: Sequence[Encoded]) -> Record:
        partition = journal.partition
        offset = self.ends.get(partition, 0)
        first, last = journal.seq_nr + 1, journal.seq_nr + len(payloads)
        tags = self.tags
        events = [
            EventData(first + at, tags[(first + at) % len(tags)], *payload) for at, payload in enumerate(payloads)
        ]
        payload_type, value = encode_value(tuple(events))
        action = Append(
            range=ActionRange(first, last),
            origin=ORIGIN,
            version=__version__,
            payload_type=payload_type,
            metadata=wrap_header_data(None),
            expected=Expected(journal.seq_nr, journal.life),
            id=f"{first}.filled-{partition}-{offset:x}",
        )
        if journal.life is None:
            journal.life = self.topic.life(partition, offset)
        journal.seq_nr = last
        self.ends[partition] = offset + 1
        return Record(partition, offset, time.time_ns() // 1_000_000, journal.key, encode_action(action), value)
