"""Where a snapshot goes: every store keeps a ring of slots per journal."""

from __future__ import annotations

from collections.abc import Mapping


def ring_slot(taken: Mapping[int, tuple[bool, int, int]], seq_nr: int, slots: int) -> int:
    """Where a snapshot goes, given (of the same life, seqNr, timestamp) by slot.

    Its own slot, the lowest free one, or the oldest; those of another life go first, however high their seqNrs.
    """
    for slot, (same_life, found, _) in taken.items():
        if same_life and found == seq_nr:
            return slot
    free = next((slot for slot in range(slots) if slot not in taken), None)
    return free if free is not None else min(taken, key=lambda slot: taken[slot])
