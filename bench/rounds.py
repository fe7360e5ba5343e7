"""Rounds: contenders take turns in one run, so that a slow minute of the machine hits all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Round:
    """What one round did. `latencies` are the seconds of each operation, if they were taken."""

    operations: int
    seconds: float
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


@dataclass(slots=True)
class Contender:
    """One of the things that are compared, and its rounds so far."""

    name: str
    run: Callable[[], Round]
    rounds: list[Round] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Operations per second: the median over the rounds."""
        return statistics.median(done.rate for done in self.rounds)

    @property
    def latencies(self) -> list[float]:
        return [seconds for done in self.rounds for seconds in done.latencies]


@dataclass(slots=True)
class Laps:
    """When the first of `wanted` things happened, and when the last: a worker is timed without its start and end.

    Things that take time say when they begin, too: then all of them count, from the first beginning to the last end.
    """

    wanted: int
    seen: int = 0
    first: float = 0.0
    last: float = 0.0
    begun: bool = False

    def begin(self) -> None:
        """Something begins that `see` will end."""
        if not self.begun:
            self.begun, self.first = True, time.perf_counter()

    def see(self) -> bool:
        """Another thing happened; whether it was the last."""
        if not self.seen and not self.begun:
            self.first = time.perf_counter()
        self.seen += 1
        if self.seen != self.wanted:
            return False
        self.last = time.perf_counter()
        return True

    @property
    def round(self) -> Round:
        return Round(self.wanted if self.begun else self.wanted - 1, self.last - self.first)


def alternate(contenders: Sequence[Contender], rounds: int) -> None:
    """One warm-up round each, which does not count, then `rounds` that do: A, B, A, B, …"""
    for number in range(rounds + 1):
        for contender in contenders:
            # No contender pays for the garbage of another.
            gc.collect()
            done = contender.run()
            if number:
                contender.rounds.append(done)


def ratio(one: Contender, other: Contender) -> float:
    """How many times faster one was: the median over the turns, because a slow moment hits both sides of a turn."""
    turns = zip(one.rounds, other.rounds, strict=True)
    return statistics.median(mine.rate / theirs.rate for mine, theirs in turns)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value that `percent` of the values do not exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
