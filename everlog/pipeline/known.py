"""Heads that a worker process has written itself: the batch that follows need not load them again.

A known head is the exact fold of the log up to where the last batch ended. It is of use only to the batch that starts
right there, and only in a store where a late write changes nothing: somebody else may be further on by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from everlog.journal.head import Head
from everlog.store.base import KeyChange

# Bounds for one worker process.
MAX_PARTITIONS = 16
MAX_HEADS = 10_000


class KnownHeads:
    """The heads of one log partition."""

    def __init__(self, most: int = MAX_HEADS) -> None:
        self._most = most
        self._end: int | None = None
        self._heads: dict[str, Head] = {}

    def begin(self, start: int) -> None:
        """A batch starts at this offset. Until it is done the heads belong to nobody else: an error drops them."""
        if self._end != start:
            self._heads.clear()
        self._end = None

    def finish(self, end: int) -> None:
        """All writes of the batch, which ended before this offset, are durable."""
        self._end = end

    def find(self, ids: Sequence[str]) -> dict[str, Head]:
        """Those of the heads that are known."""
        heads = self._heads
        return {journal_id: heads[journal_id] for journal_id in ids if journal_id in heads}

    def learn(self, changes: Iterable[KeyChange]) -> None:
        """These were written, with all that their garbage says: so there is none left."""
        heads = self._heads
        for key in changes:
            heads.pop(key.id, None)
            if key.change.head is not None:
                heads[key.id] = msgspec.structs.replace(key.change.head, garbage=())
        while len(heads) > self._most:
            del heads[next(iter(heads))]  # the one that was used longest ago


class Partitions:
    """The known heads of the log partitions that a process works on."""

    def __init__(self, most: int = MAX_PARTITIONS) -> None:
        self._most = most
        self._known: dict[tuple[bytes, str, int], KnownHeads] = {}

    def begin(self, store: bytes, topic_id: str, partition: int, start: int) -> KnownHeads:
        """What is known as a batch starts at this offset."""
        place = (store, topic_id, partition)
        known = self._known.pop(place) if place in self._known else KnownHeads()
        self._known[place] = known
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        known.begin(start)
        return known
