"""Appends as users ask for them, and what can be wrong with them before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec

from everlog.core.codec import check_json_metadata
from everlog.core.events import Event
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import EmptyAppend, InvalidInput, InvalidRange


class Draft(msgspec.Struct, frozen=True):
    """What the user wants appended."""

    events: Sequence[Event]
    expected: int | None = None
    expire_after: timedelta | None = None
    metadata: Any = None
    header_metadata: Any = None
    headers: Mapping[str, str] | None = None

    @property
    def numbered(self) -> bool:
        return self.events[0].seq_nr is not None

    @property
    def anywhere(self) -> bool:
        """Whether the events may go wherever the journal ends."""
        return self.expected is None and not self.numbered


def check_draft(draft: Draft) -> None:
    """Everything that can be wrong with an append before anything is sent."""
    events, expected = draft.events, draft.expected
    if not events:
        raise EmptyAppend("an append needs at least one event")
    if len(events) > 1:
        _check_numbers(events)
    if expected is not None:
        if isinstance(expected, bool) or not 0 <= expected <= MAX_SEQ_NR:
            raise InvalidInput(f"expected is the seqNr that the journal has now, 0 if it is absent; not {expected!r}")
        first = events[0].seq_nr
        if first is not None and first <= expected:
            raise InvalidRange(f"the first seqNr {first} must be above expected={expected}")
    if draft.expire_after is not None and draft.expire_after <= timedelta(0):
        raise InvalidInput("expire_after must be positive")
    if draft.metadata is not None:
        check_json_metadata("metadata", draft.metadata)
    if draft.header_metadata is not None:
        check_json_metadata("header metadata", draft.header_metadata)
    for name, text in (draft.headers or {}).items():
        if not isinstance(name, str) or not isinstance(text, str) or name.startswith("journal."):
            raise InvalidInput(f"headers map text to text and their names do not start with 'journal.': {name!r}")


def _check_numbers(events: Sequence[Event]) -> None:
    given = [event.seq_nr for event in events if event.seq_nr is not None]
    if given and len(given) < len(events):
        raise InvalidInput("give every event of an append a seq_nr, or none of them")
    if any(a >= b for a, b in pairwise(given)):
        raise InvalidRange(f"the seqNrs of an append must ascend: {given[:10]}")
