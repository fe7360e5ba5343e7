"""What a journal must be, from the raw bytes of its records: lists and plain `json`, nothing of the real fold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from everlog.core.head import Head
from everlog.core.record import Record, digest


class Facts(NamedTuple):
    """What is known of a journal, apart from its events."""

    offset: int
    exists: bool
    seq_nr: int
    delete_to: int
    record_id: str | None
    created: int | None
    updated: int | None
    expire_on: date | None
    expire_at: int | None
    halted_at: int | None


ABSENT = Facts(-1, False, 0, 0, None, None, None, None, None, None)


class State(NamedTuple):
    """A journal after some prefix of the log; events are (seqNr, offset)."""

    facts: Facts
    events: tuple[tuple[int, int], ...]


def facts_of(head: Head | None) -> Facts:
    """The same of a real head. A journal that is absent has no facts but its halt, and where it ended."""
    if head is None:
        return ABSENT
    return Facts(
        head.offset,
        not head.purged,
        head.seq_nr,
        head.delete_to,
        head.record_id,
        head.created,
        head.updated,
        head.expire_on,
        head.expire_at,
        head.halted_at,
    )


@dataclass
class Oracle:
    """One journal. `life` tells the record_id of a life that starts at an offset."""

    life: Callable[[int], str]
    offset: int = -1
    exists: bool = False
    seq_nr: int = 0
    delete_to: int = 0
    record_id: str | None = None
    created: int | None = None
    updated: int | None = None
    expire_on: date | None = None
    expire_at: int | None = None
    halted_at: int | None = None
    events: list[tuple[int, int]] = field(default_factory=list)
    waiting: list[Record] = field(default_factory=list)
    accepted: dict[int, list[int]] = field(default_factory=dict)
    append_ids: list[tuple[str | None, str]] = field(default_factory=list)
    rejected: set[int] = field(default_factory=set)
    purges: int = 0
    purges_before: dict[int, int] = field(default_factory=dict)

    def state(self) -> State:
        facts = Facts(
            self.offset,
            self.exists,
            self.seq_nr,
            self.delete_to,
            self.record_id,
            self.created,
            self.updated,
            self.expire_on,
            self.expire_at,
            self.halted_at,
        )
        return State(facts, tuple(self.events))

    def take(self, record: Record) -> None:
        try:
            name, action, value = _parse(record)
        except ValueError:
            self._wait(record)
            return
        if self.halted_at is not None:
            self._take_halted(record, name, action)
        elif name == "append":
            self._append(record, action, value)
        elif name == "delete":
            self._delete(record, action)
        elif name == "purge" and self.exists:
            day = action.get("expireOn")
            if day is None or self._expired(date.fromisoformat(day), action.get("expireAt")):
                self._purge(record)

    def _expired(self, day: date, time: int | None) -> bool:
        if self.expire_at is not None and time is not None:
            return self.expire_at <= time
        return self.expire_on is not None and self.expire_on <= day

    def _wait(self, record: Record) -> None:
        if self.offset < 0:
            self.updated = record.timestamp  # the first that is heard of this journal
        if self.halted_at is None:
            self.halted_at = record.offset
        self.waiting.append(record)
        self.offset = record.offset

    def _take_halted(self, record: Record, name: str, action: Any) -> None:
        if name == "purge" and "expireOn" not in action:
            self._purge(record)
            self.halted_at, self.waiting = None, []
        elif name == "resume":
            self._resume(record, action.get("skip", []))
        elif name != "mark":
            self._wait(record)

    def _resume(self, record: Record, skip: list[str]) -> None:
        todo, self.waiting, self.halted_at = self.waiting, [], None
        while todo:
            found = todo.pop(0)
            if digest(found) in skip:
                continue
            self.take(found)
            if self.halted_at is not None:
                self.waiting += todo
                break
        self.offset = record.offset

    def _append(self, record: Record, action: Any, value: Any) -> None:
        numbers = [event["seqNr"] for event in value["events"]]
        first, last = action["range"]["from"], action["range"]["to"]
        expected = action.get("expected")
        if (
            (expected is not None and (expected["seqNr"], expected.get("recordId")) != (self.seq_nr, self.record_id))
            or first <= self.seq_nr
            or (first, last) != (numbers[0], numbers[-1])
            or numbers != sorted(set(numbers))
        ):
            self.rejected.add(record.offset)
            return
        if not self.exists:
            self.exists, self.delete_to, self.created = True, first - 1, record.timestamp
            self.record_id = action.get("life") or self.life(record.offset)
        elif self.record_id is None:
            self.record_id = action.get("life") or self.life(record.offset)
        days = value["metadata"].get("expireAfter")
        self.expire_on = self.expire_at = None
        if days is not None:
            at = datetime.fromtimestamp(record.timestamp / 1000, UTC) + timedelta(days=int(days.split()[0]))
            self.expire_on, self.expire_at = at.date(), record.timestamp + int(days.split()[0]) * 86_400_000
        self.offset, self.updated, self.seq_nr = record.offset, record.timestamp, last
        self.events += [(number, record.offset) for number in numbers]
        self.accepted[record.offset] = numbers
        self.purges_before[record.offset] = self.purges
        if "id" in action:
            self.append_ids.append((self.record_id, action["id"]))

    def _delete(self, record: Record, action: Any) -> None:
        to = action["to"]
        if "onlyLife" in action and action["onlyLife"] != self.record_id:
            return
        if not self.exists:
            if action.get("ifExists"):
                return
            self.exists, self.seq_nr, self.created = True, to, record.timestamp
        self.delete_to = max(self.delete_to, min(to, self.seq_nr))
        self.events = [event for event in self.events if event[0] > self.delete_to]
        self.offset, self.updated = record.offset, record.timestamp

    def _purge(self, record: Record) -> None:
        self.purges += 1
        self.exists, self.seq_nr, self.delete_to, self.events = False, 0, 0, []
        self.record_id = self.created = self.expire_on = self.expire_at = None
        self.offset, self.updated = record.offset, record.timestamp


def _parse(record: Record) -> tuple[str, Any, Any]:
    """Name and content of the action, and the value; a ValueError if they cannot be understood."""
    assert record.action is not None
    [(name, action)] = json.loads(record.action).items()
    return name, action, None if record.value is None else json.loads(record.value)


class Journals:
    """All journals of the log, and what each was after every prefix of it."""

    def __init__(self, ids: list[str], life: Callable[[int], str]) -> None:
        self.now = {journal_id: Oracle(life) for journal_id in ids}
        self.after = {journal_id: [oracle.state()] for journal_id, oracle in self.now.items()}
        # By the record at which they count: the offsets of appends.
        self.counted: list[list[int]] = []

    def take(self, record: Record) -> None:
        assert record.key is not None
        oracle = self.now[record.key.decode()]
        before = len(oracle.accepted)
        oracle.take(record)
        self.counted.append(list(oracle.accepted)[before:])
        for journal_id, oracle in self.now.items():
            self.after[journal_id].append(oracle.state())
