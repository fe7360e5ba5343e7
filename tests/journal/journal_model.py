"""What journals must answer, as one would write it down: dictionaries and lists, nothing of the library."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

SLOTS = 3
Words = dict[str, Any]


@dataclass
class Life:
    """A journal between two purges."""

    number: int
    seq_nr: int = 0
    delete_to: int = 0
    events: dict[int, Any] = field(default_factory=dict)
    keyed: dict[str, tuple[int, list[Any]]] = field(default_factory=dict)
    snapshots: dict[int, tuple[int, Any]] = field(default_factory=dict)
    expires_ms: int | None = None
    is_stored: bool = False  # in the tables, with its last append
    name: str | None = None  # as the library calls it, once it did

    def newest(self) -> list[Any] | None:
        if not self.snapshots:
            return None
        seq_nr = max(self.snapshots)
        return [seq_nr, self.snapshots[seq_nr][1]]


@dataclass
class Moment:
    """A journal as it was when a recovery began, and what of it is still to come."""

    key: str
    life: int
    rest: list[list[Any]]
    first: int  # from where on something may be to come


class JournalModel:
    """All journals of a topic. Each method says what the answer must be, and changes what it must change."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.lives: dict[str, Life] = {}
        self.count = 0
        self.moments: dict[int, Moment] = {}

    def version(self, key: str) -> str:
        """Where the journal is now, life included, as far as its name is known."""
        life = self.lives.get(key)
        return "0" if life is None else f"{life.seq_nr}@{life.name}" if life.name else str(life.seq_nr)

    def advance(self, seconds: float) -> Words:
        self.now_ms += round(seconds * 1000)
        return {}

    def append(
        self,
        key: str,
        payloads: list[Any],
        expected: str | None = None,
        seq_nr: int | None = None,
        idempotency_key: str | None = None,
        expire_s: int | None = None,
        verdict: bool = True,
    ) -> Words:
        life = self.lives.get(key)
        at = 0 if life is None else life.seq_nr
        number, _, name = (expected or "").partition("@")
        known = int(number) if number else None
        other_life = bool(name) and (life is None or life.name != name)
        first = seq_nr if seq_nr is not None else (at if known is None else known) + 1
        if idempotency_key is not None:
            repeated = self._repeated(life, first, idempotency_key, payloads, other_life)
            if repeated is not None:
                return repeated
        if known is not None and (known != at or other_life):
            return {"error": "Conflict", "expected": known, "actual": at}
        if first <= at and verdict:
            return {"error": "Conflict", "expected": first - 1, "actual": at}
        last = first + len(payloads) - 1
        if first > at:
            self._store(key, first, payloads, idempotency_key, expire_s)
        return {"first": first, "last": last, "life": verdict}

    def _repeated(
        self, life: Life | None, first: int, idempotency_key: str, payloads: list[Any], other_life: bool
    ) -> Words | None:
        stored = None if life is None else life.keyed.get(f"{first}.{idempotency_key}")
        if life is not None and stored is not None and life.delete_to < stored[0]:
            last, before = stored
            kept = last - max(first - 1, life.delete_to)
            if len(before) != len(payloads) or before[-kept:] != payloads[-kept:]:
                return {"error": "AppendIdReused"}
            return {"first": first, "last": last, "life": True}
        if other_life or (life is not None and life.delete_to >= first):
            return {"error": "OutcomeDeleted"}
        return None

    def _store(
        self, key: str, first: int, payloads: list[Any], idempotency_key: str | None, expire_s: int | None
    ) -> None:
        life = self.lives.get(key)
        if life is None:
            self.count += 1
            life = self.lives[key] = Life(self.count, delete_to=first - 1)
        for number, payload in enumerate(payloads, first):
            life.events[number] = payload
        life.seq_nr = first + len(payloads) - 1
        life.is_stored = False
        life.expires_ms = None if expire_s is None else self.now_ms + expire_s * 1000
        if idempotency_key is not None:
            life.keyed[f"{first}.{idempotency_key}"] = (life.seq_nr, payloads)

    def read(
        self,
        key: str,
        from_seq: int = 1,
        to_seq: int = 2**63 - 1,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Words:
        life = self.lives.get(key)
        found = (
            [] if life is None else [[at, life.events[at]] for at in sorted(life.events) if from_seq <= at <= to_seq]
        )
        return {"events": (found[::-1] if reverse else found)[:limit]}

    def pointer(self, key: str) -> Words:
        return {"version": self.version(key) if key in self.lives else None}

    def delete(self, key: str, to: int) -> Words:
        life = self.lives.get(key)
        if life is None:
            return {"deleted": False}
        life.delete_to = max(life.delete_to, min(to, life.seq_nr))
        life.events = {at: payload for at, payload in life.events.items() if at > life.delete_to}
        return {"deleted": True}

    def purge(self, key: str) -> Words:
        self.lives.pop(key, None)
        return {}

    def mark(self, key: str) -> Words:
        return {}

    def keys(self) -> Words:
        return {"keys": sorted(self.lives)}

    def replicated(self) -> None:
        """All of this is in the tables."""
        for life in self.lives.values():
            life.is_stored = True

    def due(self) -> list[str]:
        """What may be purged now; what is in the tables must be. Of the others nobody could know."""
        return [
            key for key, life in self.lives.items() if life.expires_ms is not None and life.expires_ms <= self.now_ms
        ]

    def expire(self, keys: list[str]) -> None:
        for key in keys:
            self.lives.pop(key, None)

    def save(self, key: str, version: str, payload: Any) -> Words:
        life = self.lives.get(key)
        number, _, name = version.partition("@")
        if life is None:
            return {"error": "JournalNotFound"}
        if name and name != life.name:
            return {"error": "Conflict", "expected": int(number), "actual": int(number)}
        if int(number) > life.seq_nr:
            return {"error": "InvalidInput"}
        if int(number) not in life.snapshots and len(life.snapshots) == SLOTS:
            del life.snapshots[min(life.snapshots)]
        life.snapshots[int(number)] = (self.now_ms, payload)
        return {}

    def load(self, key: str) -> Words:
        life = self.lives.get(key)
        return {"snapshot": None if life is None else life.newest()}

    def recover(self, key: str, handle: int) -> Words:
        life = self.lives.get(key)
        kept = None if life is None else life.newest()
        if life is None:
            self.moments[handle] = Moment(key, 0, [], 1)
        else:
            first = 1 if kept is None else kept[0] + 1
            rest = [[at, life.events[at]] for at in sorted(life.events) if at >= first]
            self.moments[handle] = Moment(key, life.number, rest, max(first, life.delete_to + 1))
        return {"version": self.version(key), "snapshot": kept}

    def consume(self, handle: int, count: int, answer: Words) -> Words:
        """Whatever comes must be of that moment; only what is deleted by now may be missing, and must be missed."""
        moment = self.moments[handle]
        if answer["events"]:
            moment.first = answer["events"][-1][0] + 1
        came, moment.rest = moment.rest[: len(answer["events"])], moment.rest[len(answer["events"]) :]
        end: str | None = None
        if answer["end"] == "Overtaken" and self._is_overtaken(replace(moment)):
            end = "Overtaken"
        elif len(came) < count:
            came, moment.rest, end = came + moment.rest, [], "all"
        if end is not None:
            del self.moments[handle]
        return {"events": came, "end": end}

    def _is_overtaken(self, moment: Moment) -> bool:
        """Only by a delete that reaches beyond what was given out. A reader cannot know that it met a gap there."""
        life = self.lives.get(moment.key)
        if not moment.rest:
            return False
        return life is None or life.number != moment.life or life.delete_to >= moment.first
