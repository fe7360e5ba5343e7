"""What a reader knows of each journal: the number that it delivered last."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple


class LastDelivered(NamedTuple):
    """`number` at `place`, noted at the steady time `updated`; `highest` is the latest place of all so far.

    `guess`: nothing was delivered yet; a first look at the tag saw `number` + 1 as the lowest.
    """

    number: int
    place: int
    highest: int
    updated: int
    guess: bool = False


class DeliveredNumbers:
    """The last number of each journal. Bounded: a journal that was silent for long is forgotten."""

    def __init__(self) -> None:
        self._last: dict[str, LastDelivered] = {}
        self.forgot = False

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[tuple[str, LastDelivered]]:
        return iter(self._last.items())

    def get(self, persistence_id: str) -> LastDelivered | None:
        return self._last.get(persistence_id)

    def put(self, persistence_id: str, last: LastDelivered) -> None:
        self._last[persistence_id] = last

    def since(self, place: int) -> Mapping[str, int]:
        """The last numbers of all journals that were delivered at this place or later."""
        return {
            persistence_id: last.number
            for persistence_id, last in self._last.items()
            if last.highest >= place and not last.guess
        }

    def forget(self, *, updated_before: int, below: int, spare: Container[str]) -> None:
        """Drop journals that were silent since then.

        Not those with an event at `below` or later: a search or a look back could still find that one, and would
        deliver it again.
        """
        old = [
            persistence_id
            for persistence_id, last in self._last.items()
            if last.updated < updated_before and last.highest < below and persistence_id not in spare
        ]
        for persistence_id in old:
            del self._last[persistence_id]
        self.forgot = self.forgot or bool(old)
