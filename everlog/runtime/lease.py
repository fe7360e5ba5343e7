"""Leases by beat: who owns what, whether that owner lives, and fair shares of keys. Pure: time is an argument.

An owner renews its lease by counting a beat up. No two clocks are compared: a lease is stale for an observer that saw
the same beat for the lease's whole length on its own clock. The owner gives up earlier, counting from before it asked
for the renewal; so it never works on a key that another may have taken. Projections, nodes of documents and owners of
queues do it this way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

# Of the renewals within a lease, two may fail.
BEATS_PER_LEASE = 3


class Lease(msgspec.Struct, frozen=True):
    """Who owns a key: `epoch` grows with every change of hands, `beat` with every renewal. No owner: free."""

    name: str
    key: str
    owner: str | None
    epoch: int
    beat: int = 0

    @property
    def sign(self) -> tuple[str | None, int, int]:
        """What changes while its owner lives: the sign of life that a `LeaseWatch` looks at."""
        return self.owner, self.epoch, self.beat


class LeaseWatch:
    """Remembers since when each owner has shown the same beat."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[object, float]] = {}

    def look(self, name: str, beat: object, now: float) -> bool:
        """Whether this one is alive: its beat changed within the lease's length, as seen from here."""
        before = self._seen.get(name)
        if before is None or before[0] != beat:
            self._seen[name] = (beat, now)
            return True
        return now - before[1] < self._lease_s

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}


class Shares(NamedTuple):
    """What an instance should do: keys to take, keys to give up."""

    take: list[str]
    give: list[str]


def share(me: str, keys: Collection[str], owners: Mapping[str, str | None], alive: Collection[str]) -> Shares:
    """Fair shares: once all have done this, no living instance has more than one key more than another.

    `owners`: the holder of each key, None where it is free or its lease is stale. The limits of all instances add up
    to the number of keys, so an instance beyond its limit gives keys up only if another one has room for them.
    """
    living = sorted({*alive, me})
    held: dict[str, list[str]] = {name: [] for name in living}
    free: list[str] = []
    for key in sorted(keys):
        owner = owners.get(key)
        if owner in held:
            held[owner].append(key)
        else:
            free.append(key)
    least, more = divmod(len(keys), len(living))
    # Instances that have the most keys may keep one more than the others: no key moves needlessly.
    order = sorted(living, key=lambda name: (-len(held[name]), name))
    limits = {name: least + (place < more) for place, name in enumerate(order)}
    room = limits[me] - len(held[me])
    if room >= 0:
        # Instances start at different places, so that they seldom reach for the same key.
        start = living.index(me) * max(1, len(free) // len(living)) % len(free) if free else 0
        return Shares([*free[start:], *free[:start]][:room], [])
    return Shares([], held[me][room:])
