"""A log that was copied elsewhere, to other offsets of another topic, folds to the same journals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from everlog.core import fold as folding
from everlog.core.actions import Copied, Delete
from everlog.core.change import Change
from everlog.core.entry import decode
from everlog.core.fold import fold
from everlog.core.record import Record
from tests.models import world as worlds
from tests.models.world import TOPIC, World

SEEDS = 300
MIRROR = TOPIC._replace(name="journal-mirror", id="another-id")


def moved(offset: int) -> int:
    """Where a record is in the mirror: behind others, and with gaps."""
    return 2 * offset + 5


def at_home(offset: int | None) -> int | None:
    return None if offset is None else (offset - 5) // 2


def seen(change: Change, place: Callable[[int | None], int | None]) -> tuple[Any, ...]:
    """What a fold says, with the offsets of the original."""
    head = change.head
    state = None
    if head is not None:
        facts = (head.seq_nr, head.delete_to, head.record_id, head.purged, head.created, head.updated, head.expire_on)
        state = (place(head.offset), place(head.halted_at), *facts)
    rows = [(row.seq_nr, place(row.offset), row.record_id, row.data) for row in change.rows]
    lost = [(place(one.offset), one.reason, one.actual) for one in change.rejected]
    return state, rows, lost, [place(found.record.offset) for found in change.waiting]


def difference(seed: int) -> tuple[object, object] | None:
    """Of a random log: what the original says and what its mirror says, if that differs."""
    world = World(Random(seed), ["a"], halts=seed % 2 == 1, mirrored=True)
    if seed % 3 == 0:  # a copy that begins behind what is deleted of its original
        world.say("a", worlds.plain(Delete(2, copied=Copied(), life=world.new_life())))
    for _ in range(world.random.randint(3, 15)):
        world.produce()
    records: list[Record] = world.log.records
    copies = [msgspec.structs.replace(record, offset=moved(record.offset)) for record in records]
    original = seen(fold(None, map(decode, records), TOPIC), lambda offset: offset)
    mirror = seen(fold(None, map(decode, copies), MIRROR), at_home)
    return None if original == mirror else (original, mirror)


@pytest.mark.parametrize("start", range(0, SEEDS, 100))
def test_a_mirror_is_the_same(start) -> None:
    for seed in range(start, start + 100):
        found = difference(seed)
        assert found is None, f"seed {seed}: {found}"


# A rule, and the product without it.
RULES: dict[str, list[tuple[Any, str, Any]]] = {
    "a life is named by its first record": [
        (folding._FoldRun, "_begun_life", lambda run, record, _: run.topic.life(record.partition, record.offset))
    ],
    "the beginning of a copy names its life": [
        (
            folding._FoldRun,
            "_begun_life",
            lambda run, record, action: (
                (None if isinstance(action, Delete) else action.life) or run.topic.life(record.partition, record.offset)
            ),
        )
    ],
    "a Resume names records by what they say": [
        (module, "digest", lambda record: str(record.offset)) for module in (folding, worlds)
    ],
}


@pytest.mark.parametrize("broken", RULES.values(), ids=RULES.keys())
def test_without_the_rule_a_mirror_differs(broken) -> None:
    with ExitStack() as stack:
        for rule in broken:
            stack.enter_context(patch.object(*rule))
        assert any(difference(seed) for seed in range(SEEDS))
