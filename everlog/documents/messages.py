"""Messages: writes that carried an id, and the answer that a repetition of one gets.

What holds, whatever the store:

1. A message is stored by the very conditional batch that accepts its write: it is there if and only if the write is.
2. It is kept for a day. Nothing that happens to the document takes it away earlier, not even its deletion.
3. The head counts messages by quarter hours: that batch adds one to the quarter hour of its time, and nothing is ever
   taken off. A quarter hour leaves the count as a whole, when the last message that it may hold is a day old. So the
   sum is never below the number of messages that are kept, it is above by at most those of a quarter hour, and it
   cannot drift, whatever the store removes and when.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec

from everlog.core.duration import DAY_S
from everlog.errors import MessageReused, TooManyMessages

MESSAGE_MS = DAY_S * 1000
KEPT_S = DAY_S + 3600
"""How long a store keeps a row: somewhat longer than it counts, so that clocks need not agree to the second."""
SLOT_MS = 15 * 60_000

MessageCounts: TypeAlias = tuple[tuple[int, int], ...]
"""(quarter hour since 1970, messages in it), the oldest first."""


class MessageResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of one write of a message."""

    uuid: str
    revision: int
    item: str
    created: bool
    expires_ms: int | None = None


class StoredMessage(msgspec.Struct, frozen=True, array_like=True):
    """A request that carried a message id: enough to answer its repetition."""

    id: str
    digest: str
    time_ms: int
    results: tuple[MessageResult, ...]

    def answers(self, digest: str, now_ms: int) -> bool:
        """Whether this is the answer to a request with its id; MessageReused if that was another request."""
        if now_ms - self.time_ms >= MESSAGE_MS:
            return False
        if self.digest != digest:
            raise MessageReused("message-id-reused", f"the message id {self.id!r} was used for another request already")
        return True


def repeat(message_id: str | None) -> str:
    """What to do about a write whose outcome is unknown."""
    return "repeat it with its message id" if message_id else "look, and give writes a message id: then repeat them"


def count_message(counts: MessageCounts, now_ms: int) -> MessageCounts:
    """The counts with one message more, without the quarter hours that are over."""
    slot = now_ms // SLOT_MS
    found = dict(_kept(counts, now_ms))
    return tuple(sorted((found | {slot: found.get(slot, 0) + 1}).items()))


def check_count(counts: MessageCounts, now_ms: int, *, uri: str, limit: int) -> None:
    """Refuse one message more than a document may have."""
    kept = _kept(counts, now_ms)
    if sum(count for _, count in kept) >= limit:
        wait_ms = min(slot for slot, _ in kept) * SLOT_MS + SLOT_MS + MESSAGE_MS - now_ms
        raise TooManyMessages(uri, limit, max(1, math.ceil(wait_ms / 1000)))


def _kept(counts: MessageCounts, now_ms: int) -> MessageCounts:
    return tuple((slot, count) for slot, count in counts if (slot + 1) * SLOT_MS + MESSAGE_MS > now_ms)
