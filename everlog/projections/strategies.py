"""How handling and storing the offset follow each other, and so what a crash repeats or loses."""

from __future__ import annotations

import msgspec

from everlog.projections.save_window import SaveWindow
from everlog.projections.settings import check_count

MAX_PARALLELISM = 10_000


class AtLeastOnce(msgspec.Struct, frozen=True):
    """Handle, then store the offset, after `save_every` envelopes or `within_s` seconds: up to a window is repeated.

    `parallelism`: as many envelopes at a time, in order per journal; the offset covers the contiguous prefix.
    """

    save_every: int = 100
    within_s: float = 0.5
    parallelism: int = 1

    def __post_init__(self) -> None:
        SaveWindow(self.save_every, self.within_s)
        check_count("parallelism", self.parallelism, most=MAX_PARALLELISM)


class Grouped(msgspec.Struct, frozen=True):
    """Handle lists of up to `size` envelopes, after `within_s` seconds at the latest; store the last one's offset."""

    size: int = 20
    within_s: float = 0.5

    def __post_init__(self) -> None:
        SaveWindow(self.size, self.within_s)


class AtMostOnce(msgspec.Struct, frozen=True):
    """Store the offset, then handle: a crash loses one envelope at most, and none is handled twice."""


class Flow(msgspec.Struct, frozen=True):
    """The handler is an async generator over all envelopes; what it yields is done. Windows as in AtLeastOnce."""

    save_every: int = 100
    within_s: float = 0.5

    def __post_init__(self) -> None:
        SaveWindow(self.save_every, self.within_s)


class ExactlyOnce(msgspec.Struct, frozen=True):
    """View rows and offset change together; up to `size` envelopes that wait already share a transaction."""

    size: int = 100

    def __post_init__(self) -> None:
        SaveWindow(self.size, 1.0)


class OnSpark(msgspec.Struct, frozen=True):
    """The handler takes Spark DataFrames of up to `max_events`; `everlog replicate --projections` runs it.

    What it writes by its view is stored together with the offset. All else is repeated if a batch is.
    """

    max_events: int = 100_000

    def __post_init__(self) -> None:
        SaveWindow(self.max_events, 1.0)


Strategy = AtLeastOnce | Grouped | AtMostOnce | Flow | ExactlyOnce | OnSpark

at_least_once = AtLeastOnce
grouped = Grouped
at_most_once = AtMostOnce
flow = Flow
exactly_once = ExactlyOnce
on_spark = OnSpark
