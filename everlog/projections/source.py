"""What a projection reads from: the port that a tag, a slice range, a topic's records or a user's provider implements.

A source is part of a declaration and knows nothing of a running log; `open` makes a feed of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from everlog.journal.parts import Parts
from everlog.projections.offsets import Offset
from everlog.projections.save_window import LogPlace

_encode = msgspec.json.Encoder().encode


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """Something that a source passed: an envelope to handle, or with `passed` only the place behind a filtered one.

    `journal` is what keeps its order when others run beside it; `positions` are those of the log that this covers.
    """

    offset: Offset | None
    envelope: Any = None
    created_ms: int = 0
    journal: str | None = None
    positions: Mapping[LogPlace, int] | None = None
    passed: bool = False


class Lag(NamedTuple):
    """How far a projection is behind its source: events that wait, and since when the oldest does."""

    events: int
    seconds: float


class Feed(ABC):
    """A source at work."""

    # Whether every key passes every event of the log, as tags do; else each key has its own partitions.
    tracks_all = False

    @abstractmethod
    async def keys(self) -> Sequence[str]:
        """The parts that instances share. They are stable: an offset belongs to one."""

    @abstractmethod
    def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        """Pages of what comes after the stored offset, without end or, if the source ends, up to there."""

    async def verify(self, key: str, delivery: Delivery) -> bool:
        """Asked right before the handler is called; False: leave it out, and do not store its offset."""
        return True

    async def lag(self, key: str, stored: Offset | None) -> Lag | None:
        """How much waits behind the stored offset; None if the source cannot tell."""
        return None

    def write_down(self, envelope: Any) -> bytes | None:
        """An envelope for the dead letters; None if it cannot be written down."""
        try:
            return _encode(envelope)
        except (TypeError, ValueError, RecursionError):
            return None

    def read_back(self, payload: bytes) -> Any:
        """The envelope of a dead letter."""
        return msgspec.json.decode(payload)

    async def close(self) -> None:  # noqa: B027
        """Let go of what was opened."""


class Source(ABC):
    """A source as a declaration names it."""

    @abstractmethod
    def open(self, parts: Parts | None) -> Feed:
        """The source at work, on this log."""

    def describe(self) -> dict[str, Any]:
        """What it is, in the store, so that the lag can be told while no instance runs: at least `kind`."""
        return {"kind": "own"}
