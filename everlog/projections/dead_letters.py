"""Dead letters as people read them: the event that was given up, not the bytes that it was written down as."""

from __future__ import annotations

import msgspec

from everlog.errors import EverlogError
from everlog.projections.port import ProjectionDeadLetter
from everlog.projections.source import EnvelopeFacts, Feed


class ShownDeadLetter(ProjectionDeadLetter, frozen=True, kw_only=True):
    """An envelope that was given up, and what it is: `event` has topic, id, seq_nr, tags and the decoded payload.

    `event` is None if the envelope could not be written down, or cannot be read back; `replayable`: whether it can be
    handled again.
    """

    event: EnvelopeFacts | None = None
    replayable: bool = True


def show_letter(letter: ProjectionDeadLetter, feed: Feed | None) -> ShownDeadLetter:
    """A letter, read back by its source; a user's own source wrote JSON."""
    facts = {name: getattr(letter, name) for name in ProjectionDeadLetter.__struct_fields__}
    return ShownDeadLetter(**facts, event=_event(letter.payload, feed), replayable=letter.payload is not None)


def _event(payload: bytes | None, feed: Feed | None) -> EnvelopeFacts | None:
    if payload is None:
        return None
    try:
        if feed is not None:
            return feed.describe(feed.read_back(payload))
        return EnvelopeFacts(payload=msgspec.json.decode(payload))
    except (EverlogError, ValueError, TypeError, KeyError):
        return None  # of a source that it does not have any more
