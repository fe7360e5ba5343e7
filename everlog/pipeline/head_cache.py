"""Heads that a worker process has written itself, or the one before it: the batch that follows need not load them.

A known head is the exact fold of the log up to where the last batch ended. It is of use only to the batch that starts
right there, and only in a store where a late write changes nothing: somebody else may be further on by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from everlog.core.head import Head
from everlog.pipeline.head_handover import HandOver, HeadsFile
from everlog.store.port import KeyChange

# Bounds for one worker process.
MAX_PARTITIONS = 16
MAX_HEADS = 10_000


class KnownHeads:
    """The heads of one log partition. With a `handover`, those of a batch are left for whoever does the next one."""

    def __init__(self, max_heads: int = MAX_HEADS, handover: HandOver | None = None) -> None:
        self._max_heads = max_heads
        self._handover = handover
        self._end: int | None = None
        self._heads: dict[str, Head] = {}
        self._learned: dict[str, Head] = {}

    def begin(self, start: int) -> None:
        """A batch starts at this offset. Until it is done the heads belong to nobody else: an error drops them."""
        if self._end != start:
            self._heads = {} if self._handover is None else self._handover.take(start)
        self._learned = {}
        self._end = None

    def finish(self, end: int) -> None:
        """All writes of the batch, which ended before this offset, are durable."""
        self._end = end
        if self._handover is not None:
            self._handover.leave(end, self._learned)

    def find(self, ids: Sequence[str]) -> dict[str, Head]:
        """Those of the heads that are known."""
        heads = self._heads
        return {journal_id: heads[journal_id] for journal_id in ids if journal_id in heads}

    def learn(self, changes: Iterable[KeyChange]) -> None:
        """These were written, with all that their garbage says: so there is none left."""
        for key in changes:
            self._heads.pop(key.id, None)
            self._learned.pop(key.id, None)
            if key.change.head is not None:
                head = msgspec.structs.replace(key.change.head, garbage=())
                self._heads[key.id] = self._learned[key.id] = head
        for heads in (self._heads, self._learned):
            while len(heads) > self._max_heads:
                del heads[next(iter(heads))]  # the one that was used longest ago


class Partitions:
    """The known heads of the log partitions that a process works on."""

    def __init__(self, max_partitions: int = MAX_PARTITIONS) -> None:
        self._max_partitions = max_partitions
        self._known: dict[tuple[bytes, str, int], KnownHeads] = {}

    def begin(self, store: bytes, topic_id: str, partition: int, start: int, folder: Path) -> KnownHeads:
        """What is known as a batch starts at this offset. The processes of an executor share the folder."""
        place = (store, topic_id, partition)
        known = self._known.pop(place, None) or KnownHeads(handover=HeadsFile(folder, *place))
        self._known[place] = known
        while len(self._known) > self._max_partitions:
            del self._known[next(iter(self._known))]
        known.begin(start)
        return known
