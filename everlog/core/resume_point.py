"""From where a reader of a view that others write can go on, while some of its events are ahead of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self
from uuid import UUID

import msgspec

from everlog.errors import InvalidOffset

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
        return msgspec.json.encode(self, order="deterministic").decode() if self.last else str(self.after)

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return msgspec.json.decode(text, type=cls) if text.startswith("{") else cls(UUID(text), {})
        except (ValueError, msgspec.DecodeError) as error:
            raise InvalidOffset(f"{text!r} is not an offset: pass what str() of an event's `resume` gave") from error
