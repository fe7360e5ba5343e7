"""Which listeners wait for work, and which to wake: a pure value that is told how much there is to do.

A wake-up is a hint, not a grant. As many listeners are woken as there are due jobs that none was woken for, in turn,
so that one job does not start a herd. A listener that was woken counts until it claims or listens again; one that does
neither within `grace_ms` is forgotten, so that a dead listener holds up nothing.
"""

from __future__ import annotations

from collections import OrderedDict

GRACE_MS = 1000
_MARK = "\0"


def listener_name(owner: str, unique: str) -> str:
    """A listener for each of several waits of one owner at once; a claim of `owner` counts for all of them."""
    return f"{owner}{_MARK}{unique}"


class Listeners:
    """The listeners of one queue, by name."""

    def __init__(self, grace_ms: int = GRACE_MS) -> None:
        self._grace_ms = grace_ms
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._woken: dict[str, int] = {}

    @property
    def idle(self) -> int:
        return len(self._idle)

    def listen(self, name: str) -> None:
        """It waits; ask `wake` next, for what is due already."""
        self._woken.pop(name, None)
        self._idle.setdefault(name)

    def leave(self, name: str) -> None:
        """It no longer waits."""
        self._idle.pop(name, None)
        self._woken.pop(name, None)

    def claimed(self, name: str) -> None:
        """It has looked; what it was woken for is taken, by itself or by another."""
        for woken in [woken for woken in self._woken if woken.partition(_MARK)[0] == name]:
            del self._woken[woken]

    @property
    def pending(self) -> bool:
        """Whether a listener was woken and not heard of since, while others wait."""
        return bool(self._woken and self._idle)

    def wanted(self, now: int) -> int:
        """How many due jobs it is worth counting."""
        self._forget(now)
        return len(self._idle) + len(self._woken)

    def wake(self, due: int, now: int) -> list[str]:
        """Which listeners to wake, if `due` jobs could be claimed now."""
        self._forget(now)
        count = min(due - len(self._woken), len(self._idle))
        names = [self._idle.popitem(last=False)[0] for _ in range(max(0, count))]
        self._woken.update((name, now) for name in names)
        return names

    def _forget(self, now: int) -> None:
        late = [name for name, at in self._woken.items() if not 0 <= now - at <= self._grace_ms]
        for name in late:
            del self._woken[name]
