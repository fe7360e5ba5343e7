"""Which offset may be saved, and when. Pure: time is an argument.

The invariant of both classes: an offset that is taken out covers only envelopes that are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from everlog.projections.offsets import Offset, merge
from everlog.projections.settings import check_count, check_duration

LogPlace = tuple[str, int]
T = TypeVar("T")


class OffsetProgress(NamedTuple):
    """What one save stores: how far the source is done, and how many envelopes since the last save that covers.

    `positions`: up to which offset of which (topic, partition) of the log everything is done, filtered events
    included; that is what `wait(token)` looks at.
    """

    offset: Offset | None
    envelopes: int = 0
    positions: Mapping[LogPlace, int] = {}
    last: object = None


class SaveWindow:
    """Collects what is done until a save is due: after `count` envelopes or `within_s` seconds after the first of them.

    Maps of offsets are folded to the last place per entry, so that no part of the source stays behind because
    another one came last.
    """

    def __init__(self, count: int, within_s: float) -> None:
        self.count = check_count("the number of envelopes", count)
        self.within_s = check_duration("within_s", within_s)
        self._offset: Offset | None = None
        self._positions: dict[LogPlace, int] = {}
        self._last: object = None
        self._envelopes = 0
        self._deadline: float | None = None

    def add(
        self,
        offset: Offset | None,
        now: float,
        *,
        envelope: object = None,
        envelopes: int = 1,
        positions: Mapping[LogPlace, int] | None = None,
    ) -> bool:
        """Something is done; whether a save is due now. `envelopes=0`: the source passed what is not handled."""
        if offset is not None:
            if type(offset) is dict and type(self._offset) is dict:
                self._offset.update(offset)  # as `merge`, but the map is the window's own: it made the first one
            else:
                self._offset = merge(self._offset, offset)
        if positions:
            self._positions.update(positions)
        if envelopes:
            self._last = envelope
            self._envelopes += envelopes
        if self._deadline is None:
            self._deadline = now + self.within_s
        return self.due(now)

    def due(self, now: float) -> bool:
        return self._envelopes >= self.count or (self._deadline is not None and now >= self._deadline)

    @property
    def deadline(self) -> float | None:
        """When the window ends by time; None while it is empty."""
        return self._deadline

    def take(self) -> OffsetProgress | None:
        """What is to be saved; the window is empty afterwards. None if it was already."""
        if self._deadline is None:
            return None
        found = OffsetProgress(self._offset, self._envelopes, self._positions, self._last)
        self._offset, self._positions, self._last = None, {}, None
        self._envelopes, self._deadline = 0, None
        return found


class DonePrefix(Generic[T]):
    """Items that end in any order, and the contiguous prefix of them that is done."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, T]] = deque()
        self._done: set[int] = set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._items)

    def begin(self, item: T) -> int:
        """An item was started; its number."""
        number = self._next
        self._next += 1
        self._items.append((number, item))
        return number

    def end(self, number: int) -> list[T]:
        """An item is done; the items that now are done together with all before them, in order."""
        assert number < self._next
        self._done.add(number)
        ready: list[T] = []
        while self._items and self._items[0][0] in self._done:
            first, item = self._items.popleft()
            self._done.discard(first)
            ready.append(item)
        return ready
