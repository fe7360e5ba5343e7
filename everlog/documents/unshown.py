"""What a view cannot show: elements that are set aside, so that they hold nothing up, with the reason why.

A row says that the source could not be shown as it was at a revision. It goes when the source is shown or is gone, and
never because of what an older revision came to. Every change of a row names what it replaces, so that of two tasks one
looks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

MAX_UNSHOWN = 10_000  # of one view; when more do not fit, the whole view is filled again once there is room
MAX_REASON_CHARS = 500


class UnshownElement(msgspec.Struct, frozen=True):
    """What matches a view, and cannot be shown in it. `revision`: at which the source was written."""

    view: str
    source: str
    code: str
    reason: str
    revision: int
    since_ms: int
    attempts: int = 1


class RetriedElements(msgspec.Struct, frozen=True):
    """What became of elements that were tried again. `next`: the last of them, if there may be more."""

    shown: int
    left: int
    next: str | None = None


class UnshownTable(ABC):
    """Where the rows are kept."""

    @abstractmethod
    async def find(self, view: str, source: str) -> UnshownElement | None:
        """One row."""

    @abstractmethod
    async def page(self, view: str, *, after: str, limit: int) -> Sequence[UnshownElement]:
        """Rows of a view, by the paths of their sources."""

    @abstractmethod
    async def count(self, view: str) -> int:
        """How many rows a view has."""

    @abstractmethod
    async def put(self, element: UnshownElement, before: UnshownElement | None) -> bool:
        """Replace a row, or add one; False if the row is not, or no longer, what was before."""

    @abstractmethod
    async def remove(self, element: UnshownElement) -> None:
        """Remove this very row."""

    @abstractmethod
    async def clear(self, view: str) -> None:
        """Remove all rows of a view."""
