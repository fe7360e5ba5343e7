"""What a consumer gets, and from where it can go on."""

from __future__ import annotations

from typing import Any, Self
from uuid import UUID

import msgspec

from everlog.core.resume_point import ResumePoint
from everlog.pekko.port import EventContent, SerializedPayload
from everlog.pekko.time_buckets import unix_ms

__all__ = ["PekkoEvent", "ResumePoint"]


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
