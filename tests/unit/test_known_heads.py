"""Heads that a worker keeps from one batch to the next (the model runs the protocol with them)."""

from __future__ import annotations

from everlog.journal.fold import fold
from everlog.journal.head import Deletion
from everlog.pipeline.known import KnownHeads, Partitions
from everlog.store.base import KeyChange
from tests.support import append_record, entries, pinned_topic, purge_record

TOPIC = pinned_topic()


def change(journal_id: str, *records) -> KeyChange:
    done = fold(None, entries(*records), TOPIC)
    return KeyChange(journal_id, done, (Deletion(0), *done.deletions))


def learned(known: KnownHeads, start: int, end: int, *ids: str) -> KnownHeads:
    known.begin(start)
    known.learn([change(journal_id, append_record(start, 1)) for journal_id in ids])
    known.finish(end)
    return known


def test_heads_are_known_to_the_very_next_batch_only() -> None:
    known = learned(KnownHeads(), 0, 5, "a")
    known.begin(5)
    assert [head.offset for head in known.find(["a", "b"]).values()] == [0]
    for start in (4, 6):
        known = learned(KnownHeads(), 0, 5, "a")
        known.begin(start)
        assert known.find(["a"]) == {}


def test_a_batch_that_did_not_come_to_its_end_leaves_nothing() -> None:
    known = learned(KnownHeads(), 0, 5, "a")
    known.begin(5)
    known.begin(5)
    assert known.find(["a"]) == {}


def test_what_was_carried_out_is_not_carried_out_again() -> None:
    """A head is kept without its garbage; a marker is kept as well."""
    known = KnownHeads()
    known.begin(0)
    known.learn([change("a", append_record(0, 1), purge_record(1))])
    known.finish(2)
    known.begin(2)
    assert known.find(["a"])["a"].purged
    assert known.find(["a"])["a"].garbage == ()


def test_both_bounds_hold() -> None:
    """The heads and the partitions that were used longest ago go first."""
    known = learned(learned(KnownHeads(most=2), 0, 1, "a", "b"), 1, 2, "a", "c")
    known.begin(2)
    assert set(known.find(["a", "b", "c"])) == {"a", "c"}
    places = Partitions(most=2)
    for partition in (0, 1, 0, 2):
        learned(places.begin(b"store", "id", partition, 0), 0, 5, "a")
    found = {partition: places.begin(b"store", "id", partition, 5).find(["a"]) for partition in (0, 2)}
    assert all(found.values())
    assert not places.begin(b"store", "id", 1, 5).find(["a"])
    assert not places.begin(b"other", "id", 0, 5).find(["a"])
