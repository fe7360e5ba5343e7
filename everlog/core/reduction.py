"""Which actions of a batch still matter at its end. Spec section 3.3.

An optimisation and nothing else: the fold looks at every entry anyway, but builds no rows for appends that a
later purge or delete of the same batch removes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from everlog.core.actions import Append, Delete, Mark, Purge, Resume
from everlog.core.entry import Entry


class Reduced(NamedTuple):
    """One step of the reduced batch. Neighbouring appends share a step, at the offset of the newest."""

    kind: Literal["appends", "delete", "purge"]
    offset: int
    appends: tuple[int, ...] = ()
    to: int = 0


def reduce(entries: Sequence[Entry]) -> list[Reduced]:
    """Scan newest to oldest and keep what has an effect; oldest first in the result."""
    steps: list[Reduced] = []  # newest first while scanning
    covered: int | None = None  # `to` of the oldest delete kept so far
    for entry in reversed(entries):
        action, offset = entry.action, entry.record.offset
        following = steps[-1] if steps else None
        if following is not None and following.kind == "purge":
            break  # nothing older than a purge matters
        if isinstance(action, Purge):
            if action.expire_on is None:
                steps.append(Reduced("purge", offset))
        elif isinstance(action, Delete) and action.copied is None:  # a copy's removes nothing
            step = Reduced("delete", offset, to=action.to)
            if following is not None and following.kind == "delete":
                if action.to >= following.to:
                    steps[-1], covered = step, action.to
            elif covered is None or covered < action.to:
                steps.append(step)
                covered = action.to
        elif isinstance(action, Append):
            if following is None or following.kind != "appends":
                steps.append(Reduced("appends", offset, (offset,)))
            elif covered is None or covered < action.range.last:
                steps[-1] = Reduced("appends", following.offset, (offset, *following.appends))
    return steps[::-1]


def rowless(entries: Sequence[Entry], *, halted: bool) -> frozenset[int]:
    """The offsets of appends whose rows need not be built.

    Around a halt nothing is left out: a Resume may skip the very delete that would have removed the rows.
    """
    removing = False
    appends = []
    for entry in entries:
        action = entry.action
        if entry.error is not None or isinstance(action, Resume):
            return frozenset()
        if isinstance(action, Append):
            appends.append(entry.record.offset)
        elif action is not None and not isinstance(action, Mark):
            removing = True
    if halted or not removing or not appends:
        return frozenset()
    kept = {offset for step in reduce(entries) for offset in step.appends}
    return frozenset(appends) - kept
