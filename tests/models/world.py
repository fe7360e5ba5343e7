"""What all processes of a run share, and the records that a random producer writes into the log."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from everlog.core.actions import (
    Action,
    ActionRange,
    Append,
    Delete,
    Expected,
    Mark,
    Purge,
    Resume,
    encode_action,
    wrap_header_data,
)
from everlog.core.codec import EventData, PayloadMetadata, encode_value
from everlog.core.duration import ExpireAfter
from everlog.core.entry import decode
from everlog.core.fold import fold
from everlog.core.head import Topic
from everlog.core.record import NewRecord, Record, digest
from everlog.core.values import segment_of
from everlog.journal.reader import Ref
from everlog.log.port import Ack, LogTopic
from tests.models.doubles import LogDouble, StoreDouble
from tests.models.oracle import ABSENT, Facts, Journals
from tests.models.tables import left_behind

START_MS = 1_700_000_000_000
TOPIC = Topic(name="journal-model", id="topic-id", partitions=1, segment_size=2, base=START_MS * 1000)
Message = tuple[bytes, bytes | None]
# Before Everlog came.
THEIR_TIME = TOPIC.base - 50
LOG_TOPIC = LogTopic(TOPIC.name, TOPIC.id, 1)


def life(offset: int) -> str:
    """The record_id of the life that starts there."""
    return TOPIC.life(0, offset)


def ref_of(journal_id: str) -> Ref:
    return Ref.of(LOG_TOPIC, TOPIC, journal_id, journal_id.encode())


class ModelLog(LogDouble):
    """A log that tells the oracle about every record."""

    def __init__(self, journals: Journals, trace: list[str], random: Random) -> None:
        super().__init__(LOG_TOPIC, random)
        self.journals = journals
        self.trace = trace

    def put(self, new: NewRecord) -> Ack:
        ack = super().put(new)
        record = self.records[-1]
        self.journals.take(record)
        self.trace.append(f"log {ack.offset}: {record.key!r} {told(record)}")
        return ack


@dataclass
class World:
    """The log, the store, what they must hold, and what went wrong."""

    random: Random
    ids: list[str]
    store_class: type[StoreDouble] = StoreDouble
    halts: bool = False
    mirrored: bool = False
    trace: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    workers: list[Any] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)
    overtaken: int = 0
    judged: int = 0
    first: int = 0
    upkeep: bool = False
    only_days: bool = False
    oldest: Callable[[], int] = int
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self.journals = Journals(self.ids, life)
        self.log = ModelLog(self.journals, self.trace, self.random)
        self.tables = self.store_class.tables_class(TOPIC.base)
        self.store = self.store_class(self.tables, self.random)

    def take_over(self) -> None:
        """kafka-journal has replicated what the log holds, and said so of a part of it."""
        halts, self.halts, self.only_days = self.halts, False, True
        for _ in range(self.random.randint(1, 4)):
            self.produce()
        self.halts, self.only_days = halts, False
        for journal_id, oracle in self.journals.now.items():
            records = [decode(record) for record in self.log.records if record.key == journal_id.encode()]
            change = fold(None, records, TOPIC)
            if change.head is not None and oracle.exists:
                self.tables.lay_down(journal_id, left_behind(change.head), THEIR_TIME)
                for row in change.rows:
                    segment = segment_of(row.seq_nr, change.head.segment_size)
                    self.tables.put_event(journal_id, segment, row, THEIR_TIME)
            oracle.expire_at = None  # it knows days only
            self.journals.after[journal_id][-1] = oracle.state()
        pointer = self.random.randint(-1, len(self.log.records) - 1)
        if pointer >= 0:
            self.tables.put_pointer(pointer, THEIR_TIME)
        self.tables.is_taken_over = False
        self.first = pointer + 1
        self.trace.append(f"taken over up to {pointer}")

    def find(self, kind: str, **facts: Any) -> None:
        text = f"{kind}: " + ", ".join(f"{name} {value}" for name, value in facts.items())
        self.findings.append(text)
        self.trace.append(f"FINDING {text}")

    def known(self, facts: Facts) -> Facts:
        """What can be known: where and when an absent journal ended, only as long as there is its marker."""
        if not self.upkeep or facts.exists:
            return facts
        return ABSENT if facts.halted_at is None else facts._replace(updated=None)

    def new_life(self) -> str:
        """A name that no other life has."""
        return str(uuid.UUID(int=self.random.getrandbits(128)))

    def tick(self) -> int:
        """The next record's time. Clocks are coarse: several records may have the same."""
        self.now_ms += self.random.choice([0, 0, 1])
        return self.now_ms

    def say(self, journal_id: str, message: Message) -> int:
        """Put a record into the log; returns its offset."""
        action, value = message
        return self.log.put(NewRecord(0, self.tick(), journal_id.encode(), action, value)).offset

    def produce(self) -> None:
        """One more record, as some writer somewhere may send it."""
        journal_id = self.random.choice(self.ids)
        bad = self.halts and self.random.random() < 0.25
        self.say(journal_id, self._bad() if bad else self._action(journal_id))

    def _bad(self) -> Message:
        """A record that cannot be decoded."""
        return bad() if self.random.random() < 0.5 else (b'{"append":', None)

    def _action(self, journal_id: str) -> Message:
        random, oracle = self.random, self.journals.now[journal_id]
        chance, seq_nr = random.random(), oracle.seq_nr
        if oracle.halted_at is not None and chance < 0.3:
            everything = tuple(digest(record) for record in oracle.waiting)
            return plain(Resume(skip=random.choice([everything[:1], everything[:1], everything, ()])))
        if chance < 0.04:
            return plain(Mark(id="mark"))
        if chance < 0.64 or (chance < 0.8 and not oracle.exists and random.random() < 0.8):
            return self._append(seq_nr, oracle.record_id)
        if chance < 0.8:
            # What one knows of a journal may be of a life that is over.
            only = random.choice([None, None, oracle.record_id, life(0)])
            return plain(
                Delete(to=random.randint(1, max(1, seq_nr) + 1), if_exists=random.random() < 0.4, only_life=only)
            )
        if chance < 0.86:
            day = datetime.fromtimestamp(self.now_ms / 1000, UTC) + timedelta(days=random.randint(0, 3))
            time = self.now_ms + random.randint(-2, 2) * 43_200_000
            return plain(Purge(expire_on=day.date(), expire_at=random.choice([None, None if self.only_days else time])))
        return plain(Purge())

    def _append(self, seq_nr: int, record_id: str | None) -> Message:
        """Mostly right; else with a gap, a fork, an expectation that fails, or a range that is not true."""
        random = self.random
        first = seq_nr + 1 if random.random() < 0.85 else max(1, seq_nr + random.choice([0, 2, 3]))
        numbers = list(range(first, first + random.choice([1, 1, 2, 3])))
        if len(numbers) > 1 and random.random() < 0.1:
            numbers[-1] += 2
        seen = random.choice([None, None, seq_nr, max(0, seq_nr - 1)])
        expected = None if seen is None else Expected(seen, record_id if random.random() < 0.95 else life(0))
        last = numbers[-1] + (random.random() < 0.03)
        # Records of kafka-journal name no life; ours do, unless they expect one.
        named = self.mirrored or random.random() < 0.7
        begun = self.new_life() if named and (expected is None or expected.record_id is None) else None
        return append(numbers, last=last, expected=expected, days=random.choice([None, None, 1, 2]), begun=begun)


def append(
    numbers: list[int],
    *,
    last: int | None = None,
    expected: Expected | None = None,
    days: int | None = None,
    begun: str | None = None,
) -> Message:
    """An append of events with these seqNrs; its header may claim another last one."""
    events = [EventData(number, (), "text", f"event {number}") for number in numbers]
    after = None if days is None else ExpireAfter.of(timedelta(days=days))
    payload_type, value = encode_value(events, PayloadMetadata(after))
    span = ActionRange(numbers[0], last or numbers[-1])
    action = Append(
        range=span, payload_type=payload_type, metadata=wrap_header_data(None), expected=expected, life=begun
    )
    return encode_action(action), value


def without(world: World, offset: int) -> Message:
    """A Resume that leaves out the record at this offset."""
    return plain(Resume(skip=(digest(world.log.records[offset]),)))


def bad() -> Message:
    """An append whose value is cut off."""
    header, value = append([1, 2])
    assert value is not None
    return header, value[: len(value) // 2]


def plain(action: Action) -> Message:
    """An action that has no value."""
    return encode_action(action), None


def told(record: Record) -> str:
    """A record in a few words, for the schedule."""
    assert record.action is not None
    try:
        numbers = [] if record.value is None else [event["seqNr"] for event in json.loads(record.value)["events"]]
    except ValueError:
        numbers = ["cut off"]
    # An append's id comes from the system's random numbers: without it, a seed always tells the same story.
    action = re.sub(r',"id":"[^"]*"', "", record.action.decode())
    return f"{action} {numbers}" if numbers else action
