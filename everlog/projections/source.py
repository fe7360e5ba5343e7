"""What a projection reads from: the port that a tag, a slice range, a topic's records or a user's provider implements.

A source is part of a declaration and knows nothing of a running log; `open` makes a feed of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from everlog.journal.parts import JournalParts
from everlog.projections.offsets import JournalNumber, Offset, Single, encode
from everlog.projections.save_window import LogPlace

_encode = msgspec.json.Encoder().encode


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """Something that a source passed: an envelope to handle, or with `passed` only the place behind a filtered one.

    `journal` is what keeps its order when others run beside it; `positions` are those of the log that this covers.
    `numbered`: what it is, where offsets do not tell which deliveries came before it.
    """

    offset: Offset | None
    envelope: Any = None
    created_ms: int = 0
    journal: str | None = None
    positions: Mapping[LogPlace, int] | None = None
    passed: bool = False
    numbered: JournalNumber | None = None


class Lag(NamedTuple):
    """How far a projection is behind its source: events that wait, and since when the oldest does."""

    events: int
    seconds: float


class EnvelopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an envelope is, for people: the event of a journal. What the source does not know is None."""

    topic: str | None = None
    id: str | None = None
    seq_nr: int | None = None
    tags: tuple[str, ...] = ()
    payload_type: str | None = None
    payload: Any = None


class Feed(ABC):
    """A source at work."""

    # Whether every key passes every event of the log, as tags do; else each key has its own partitions.
    tracks_all = False
    # Whether keys are shares of one whole, which may be divided anew: then no two divisions have a key in common.
    divides = False

    @abstractmethod
    async def keys(self) -> Sequence[str]:
        """The parts that instances share. They are stable: an offset belongs to one."""

    @abstractmethod
    def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        """Pages of what comes after the stored offset, without end or, if the source ends, up to there."""

    async def read_to(self, key: str, stored: Offset | None, end: Offset) -> AsyncIterator[Sequence[Delivery]]:
        """The same up to a stored offset, or the entries of its map; then it ends."""
        open_ends = _entries(end)
        async with aclosing(self.read(key, stored)) as pages:  # type: ignore[type-var]
            async for page in pages:
                taken: list[Delivery] = []
                for delivery in page:
                    for entry, offset in _entries(delivery.offset).items():
                        if entry in open_ends:
                            taken.append(delivery)
                            if encode(open_ends[entry]) == encode(offset):
                                del open_ends[entry]
                yield taken
                if not open_ends:
                    return

    async def parts(self, key: str) -> Sequence[str] | None:
        """The entries of maps of offsets that belong to a key, if keys divide a source that can be divided anew."""
        return None

    def check_offset(self, key: str, offset: Offset) -> Offset:
        """An offset that a user wants to set, as it is stored. Raises InvalidOffset if the source has no such ones."""
        return offset

    def parse_shown(self, text: str) -> Offset:
        """The offset that reports and commands name so. Raises InvalidOffset."""
        return text

    def is_done(self, offset: Offset, stored: Offset | None) -> bool:
        """Whether what is at this offset will not come any more; False if offsets do not tell."""
        return False

    async def check_place(self, key: str, offset: Offset) -> None:  # noqa: B027
        """Raises InvalidOffset if the source has no such place, and will not have it soon."""

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

    def describe(self, envelope: Any) -> EnvelopeFacts:
        """What an envelope is, for people. An event of a journal says it by itself, all else is a payload."""
        if not hasattr(envelope, "seq_nr") or not hasattr(envelope, "payload"):
            return EnvelopeFacts(payload=msgspec.to_builtins(envelope, enc_hook=str))
        return EnvelopeFacts(
            topic=getattr(envelope, "topic", None),
            id=getattr(envelope, "id", None),
            seq_nr=envelope.seq_nr,
            tags=tuple(sorted(getattr(envelope, "tags", ()))),
            payload_type=getattr(getattr(envelope, "event", envelope), "payload_type", None),
            payload=envelope.payload,
        )

    async def close(self) -> None:  # noqa: B027
        """Let go of what was opened."""


def _entries(offset: Offset | None) -> dict[str, Single]:
    if offset is None:
        return {}
    return dict(offset) if isinstance(offset, Mapping) else {"": offset}


class Source(ABC):
    """A source as a declaration names it."""

    @abstractmethod
    def open(self, parts: JournalParts | None) -> Feed:
        """The source at work, on this log."""

    def describe(self) -> dict[str, Any]:
        """What it is, in the store, so that the lag can be told while no instance runs: at least `kind`."""
        return {"kind": "own"}
