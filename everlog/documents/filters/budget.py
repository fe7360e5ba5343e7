"""What an evaluation may spend. Whatever a client makes the server compute is charged here, before it is done.

A step is about as much work as to compare two small values, some 0.1 µs. Every operation charges at least what it costs
in the worst case: a filter its size once per element, and beyond that what depends on the values: the items of
lists, the characters of long texts, the instructions of a pattern times the characters it is searched in. What is built
(texts, lists) is charged in bytes, too, for each element anew.

The steps are spent in turns. A budget that has turns ends each of them with `TurnOver`; its owner lets others
be served in between, and begins again at `mark`: what was done up to there need not be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from everlog.errors import FilterTooExpensive, QueryLimited

STEP_NS = 100
LONG = 256  # characters; a shorter text costs nothing beyond its step
LOOP_TURN = 30_000  # steps on the event loop, at once: some milliseconds
THREAD_TURN = 100_000  # steps in the thread, before other work has its turn there
PAUSE_STEPS = 20_000
PAUSE_S = 0.0002  # long enough for the event loop to get hold of the interpreter


class BudgetLimits(msgspec.Struct, frozen=True):
    """How much a query may spend, and how much one element of an index or a view."""

    query_steps: int = 20_000_000
    element_steps: int = 1_000_000
    element_bytes: int = 4 * 1024 * 1024


class TurnOver(Exception):
    """The steps of this turn are spent; there may be more turns."""


class Budget:
    """Steps and bytes that are left.

    >>> budget = Budget(10)
    >>> budget.take(3)
    >>> budget.left
    7
    """

    __slots__ = (
        "_ends",
        "_setting",
        "_stopped",
        "bytes_left",
        "deadline",
        "floor",
        "left",
        "mark",
        "max_bytes",
        "max_steps",
        "now_ms",
        "pauses",
    )

    def __init__(
        self,
        max_steps: int = BudgetLimits().element_steps,
        max_bytes: int = BudgetLimits().element_bytes,
        *,
        deadline: Callable[[], bool] = lambda: False,
        setting: str = "max_element_steps",
    ) -> None:
        self.max_steps = max_steps
        self.max_bytes = max_bytes
        self.left = max_steps
        self.bytes_left = max_bytes
        self.deadline = deadline
        self.now_ms = 0
        self.floor = 0
        """How far `left` may go down before the next look at what else matters."""
        self.mark = max_steps
        """What was left when the last piece of work was done."""
        self._ends: int | None = None
        self.pauses = False
        self._stopped = False
        self._setting = setting

    @property
    def spent(self) -> int:
        """Steps so far."""
        return self.max_steps - self.left

    def take(self, steps: int) -> None:
        """Spend steps on what is about to be done."""
        self.left -= steps
        if self.left < self.floor:
            self.look()

    def make_room(self, steps: int) -> None:
        """End the turn if what follows might not fit into it; it is charged when it is known what it took."""
        if self._ends is not None and not self.pauses and self.left - steps < self.floor:
            raise TurnOver

    def build(self, size: int) -> None:
        """Spend what it takes to make a text or a list of this size."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise FilterTooExpensive(
                f"this filter builds more than {self.max_bytes:,} bytes for one element "
                "([documents] max_element_bytes): join fewer texts and lists"
            )
        self.take(size >> 6)

    def done(self) -> None:
        """A piece of work is done: another turn begins behind it."""
        self.mark = self.left

    def begin_turn(self, *, threaded: bool = False) -> None:
        """Go on at the mark."""
        self.left = self.mark
        self.pauses = threaded
        self._ends = self.left - (THREAD_TURN if threaded else LOOP_TURN)
        self.floor = max(0, self.left - PAUSE_STEPS if threaded else self._ends)

    def stop(self) -> None:
        """The caller no longer waits: the next look ends the work."""
        self._stopped = True

    def look(self) -> None:
        """Whether there is more to spend, now."""
        if self.left < 0:
            raise FilterTooExpensive(
                f"this filter or sort takes more than {self.max_steps:,} steps ([documents] {self._setting}): "
                "make it simpler, or let it look at fewer and smaller values"
            )
        if self._ends is None:
            return
        if self._stopped or self.deadline():
            raise QueryLimited("query-timeout", "the time for this request was over before its filter was evaluated")
        worked = self.mark < self._ends + (THREAD_TURN if self.pauses else LOOP_TURN)
        if not self.pauses or (worked and self.left < self._ends):
            raise TurnOver
        time.sleep(PAUSE_S)
        self.floor = max(0, self.left - PAUSE_STEPS)
