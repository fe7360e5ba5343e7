"""What a consumer gets, and from where it can go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self
from uuid import UUID

import msgspec

from everlog.errors import InvalidOffset
from everlog.pekko.port import EventContent, SerializedPayload
from everlog.pekko.time_buckets import unix_ms

_NONE: Mapping[str, int] = {}


class ResumePoint(msgspec.Struct, frozen=True):
    """From where a reader can go on, with nothing lost and nothing twice.

    Everything up to `after` was delivered. Of the journals in `last` so were the events up to that number, although
    they lie behind `after`: that is so while another journal is held back. As text it is the offset alone, or JSON.

    >>> ResumePoint.parse(str(ResumePoint(UUID("a4698000-8f19-11e5-8080-808080808080")))).last
    {}
    """

    after: UUID
    last: Mapping[str, int] = _NONE

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode() if self.last else str(self.after)

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return msgspec.json.decode(text, type=cls) if text.startswith("{") else cls(UUID(text), {})
        except (ValueError, msgspec.DecodeError) as error:
            raise InvalidOffset(f"{text!r} is no offset: pass what str() of an event's `resume` gave") from error


class PekkoEvent(msgspec.Struct, frozen=True):
    """An event that Akka or Pekko wrote. Only its application's serializer can read the payload."""

    offset: UUID
    persistence_id: str
    seq_nr: int
    timestamp: int
    payload: SerializedPayload
    metadata: SerializedPayload | None
    event_manifest: str
    writer_uuid: str
    tags: frozenset[str] = frozenset()
    tag_seq_nr: int | None = None
    resume: ResumePoint | None = None

    @classmethod
    def of(cls, persistence_id: str, seq_nr: int, place: int, content: EventContent, **more: Any) -> Self:
        """An event from its row; `more` are the fields that not all rows have, and its offset."""
        return cls(
            persistence_id=persistence_id,
            seq_nr=seq_nr,
            timestamp=unix_ms(place),
            payload=content.payload,
            metadata=content.metadata,
            event_manifest=content.event_manifest,
            writer_uuid=content.writer_uuid,
            **more,
        )
