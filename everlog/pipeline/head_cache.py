"""Heads that a worker process has written itself, or the one before it: the cycle that follows need not load them.

A known head is the exact fold of the log up to where the last cycle ended. It serves only the cycle that starts
right there, and only in a store where a late write changes nothing: another process may be further on by now.

Spark may give a partition's next cycle to another worker process, so one process leaves the heads for the next: in a
file of the executor's own folder, one for each log partition, with the offset at which they hold.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from everlog.config.private import private
from everlog.core.head import Head
from everlog.store.port import KeyChange

logger = logging.getLogger("everlog.pipeline")

# Bounds for one worker process.
MAX_PARTITIONS = 16
MAX_HEADS = 10_000

_OFFSET = 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Head]).decode


class HandOver(Protocol):
    """Where a process that has done a cycle leaves the heads of a log partition for the next one."""

    def leave(self, end: int, heads: Mapping[str, Head]) -> None:
        """All writes of a cycle, which ended before this offset, are durable, and these are its heads."""

    def take(self, start: int) -> dict[str, Head]:
        """What was left at just this offset. Only one process gets it: nothing is left afterwards."""


class HeadsFile:
    """A hand-over in a file. It only saves work: a file that cannot be written or read is ignored."""

    def __init__(self, folder: Path, store: bytes, topic_id: str, partition: int) -> None:
        name = sha256(b"\0".join((store, topic_id.encode()))).hexdigest()[:32]
        self._file = folder / f"heads-{name}-{partition}"
        self._own = self._file.with_name(f"{self._file.name}.{os.getpid()}")

    def leave(self, end: int, heads: Mapping[str, Head]) -> None:
        try:
            with open(self._own, "wb", opener=private) as file:
                file.write(end.to_bytes(_OFFSET, "big") + _encode(heads))
            self._own.replace(self._file)
        except (OSError, OverflowError) as error:  # a head may hold a duration longer than any number of this format
            logger.warning("the next worker has to load heads again: %s", error)

    def take(self, start: int) -> dict[str, Head]:
        try:
            self._file.rename(self._own)  # of two at once, one gets it
            with self._own.open("rb") as file:
                here = int.from_bytes(file.read(_OFFSET), "big") == start
                heads = _decode(file.read()) if here else {}
            self._own.unlink()
        except (OSError, msgspec.MsgspecError):
            return {}
        return heads


class KnownHeads:
    """The heads of one log partition. With a `handover`, a cycle leaves its heads for the next worker."""

    def __init__(self, max_heads: int = MAX_HEADS, handover: HandOver | None = None) -> None:
        self._max_heads = max_heads
        self._handover = handover
        self._end: int | None = None
        self._heads: dict[str, Head] = {}
        self._learned: dict[str, Head] = {}

    def begin(self, start: int) -> None:
        """A cycle starts at this offset. Until it is done the heads belong to it alone: an error drops them."""
        if self._end != start:
            self._heads = {} if self._handover is None else self._handover.take(start)
        self._learned = {}
        self._end = None

    def finish(self, end: int) -> None:
        """All writes of the cycle, which ended before this offset, are durable."""
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


class HeadCache:
    """The known heads of the log partitions that a process works on."""

    def __init__(self, max_partitions: int = MAX_PARTITIONS) -> None:
        self._max_partitions = max_partitions
        self._known: dict[tuple[bytes, str, int], KnownHeads] = {}

    def begin(self, store: bytes, topic_id: str, partition: int, start: int, folder: Path) -> KnownHeads:
        """What is known as a cycle starts at this offset. The processes of an executor share the folder."""
        place = (store, topic_id, partition)
        known = self._known.pop(place, None) or KnownHeads(handover=HeadsFile(folder, *place))
        self._known[place] = known
        while len(self._known) > self._max_partitions:
            del self._known[next(iter(self._known))]
        known.begin(start)
        return known
