"""Heads that a worker keeps from one batch to the next (the model runs the protocol with them)."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import fields

from everlog.config import CassandraConfig, Config, KafkaConfig
from everlog.core.duration import ExpireAfter
from everlog.core.fold import fold
from everlog.core.head import Deletion, Head
from everlog.log.port import LogTopic
from everlog.log.range_reader import LogRange
from everlog.pipeline.head_cache import HeadCache, HeadsFile, KnownHeads
from everlog.pipeline.task import ApplyTask
from everlog.store.port import KeyChange
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


def test_both_bounds_hold(tmp_path: Path) -> None:
    """The heads and the partitions that were used longest ago go first."""
    known = learned(learned(KnownHeads(max_heads=2), 0, 1, "a", "b"), 1, 2, "a", "c")
    known.begin(2)
    assert set(known.find(["a", "b", "c"])) == {"a", "c"}
    places = HeadCache(max_partitions=2)
    for partition in (0, 1, 0, 2):
        learned(places.begin(b"store", "id", partition, 0, tmp_path), 0, 5, "a")
    for file in tmp_path.iterdir():
        file.unlink()
    found = {partition: places.begin(b"store", "id", partition, 5, tmp_path).find(["a"]) for partition in (0, 2)}
    assert all(found.values())
    assert not places.begin(b"store", "id", 1, 5, tmp_path).find(["a"])


def test_another_process_goes_on_with_the_heads_of_the_batch_before(tmp_path: Path) -> None:
    """Once, at just that offset, and only of the same store, topic and partition."""

    def begin(start: int = 9, store: bytes = b"store", topic: str = "id", partition: int = 0) -> dict[str, Head]:
        return HeadCache().begin(store, topic, partition, start, tmp_path).find(["a", "b", "c"])

    first = HeadCache()
    learned(first.begin(b"store", "id", 0, 0, tmp_path), 0, 5, "a", "b")
    known = learned(first.begin(b"store", "id", 0, 5, tmp_path), 5, 9, "b", "c")
    known.begin(9)
    assert known.find(["a", "b", "c"]).keys() == {"a", "b", "c"}
    assert not begin(store=b"other")
    assert not begin(topic="other")
    assert not begin(partition=1)
    found = begin()
    assert {name: head.offset for name, head in found.items()} == {"b": 5, "c": 5}
    assert found == known.find(["b", "c"])
    assert not begin(), "it belongs to the one that took it"


@pytest.mark.parametrize("start", [0, 8, 10])
def test_heads_of_another_offset_are_not_taken(tmp_path: Path, start: int) -> None:
    learned(HeadCache().begin(b"store", "id", 0, 0, tmp_path), 0, 9, "a")
    assert HeadCache().begin(b"store", "id", 0, start, tmp_path).find(["a"]) == {}


def test_a_batch_that_failed_leaves_nothing_to_others(tmp_path: Path) -> None:
    known = learned(HeadCache().begin(b"store", "id", 0, 0, tmp_path), 0, 5, "a")
    known.begin(5)
    known.learn([change("a", append_record(5, 2))])
    for start in (6, 9):
        assert HeadCache().begin(b"store", "id", 0, start, tmp_path).find(["a"]) == {}


def test_a_task_leaves_its_heads_in_the_folder_of_its_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkFiles._is_running_on_worker", True)
    monkeypatch.setattr("pyspark.SparkFiles._root_directory", str(tmp_path))
    config = Config(kafka=KafkaConfig(), cassandra=CassandraConfig())
    wanted = LogRange(LogTopic(TOPIC.name, TOPIC.id, TOPIC.partitions), 0, 5, 9)
    known = ApplyTask(config, {TOPIC.name: TOPIC}, [[wanted]])._begin(msgspec.json.encode(config), wanted)
    assert known is not None
    learned(known, 5, 9, "a")
    assert HeadsFile(tmp_path, msgspec.json.encode(config), TOPIC.id, 0).take(9).keys() == {"a"}


def test_every_field_of_a_head_is_handed_over(tmp_path: Path) -> None:
    full = Head(
        partition=1,
        offset=2,
        segment_size=100,
        seq_nr=7,
        delete_to=3,
        created=4,
        updated=5,
        expire_after=ExpireAfter(3),
        expire_on=date(2026, 1, 2),
        expire_at=9,
        record_id="life",
        origin="here",
        purged=True,
        halted_at=6,
        legacy_segment=True,
        tag_seq={"tag": 8},
    )
    assert all(getattr(full, field.name) != field.default for field in fields(Head) if field.name != "garbage")
    file = HeadsFile(tmp_path, b"store", "id", 0)
    file.leave(3, {"a": full})
    assert file.take(3) == {"a": full}


def test_a_head_that_the_file_cannot_hold_stops_nothing(tmp_path: Path) -> None:
    """A duration of 600 years has more nanoseconds than fit: the batch is done, and the next worker loads its heads."""
    after = ExpireAfter.of(timedelta(days=365 * 600))
    file = HeadsFile(tmp_path, b"store", "id", 0)
    file.leave(3, {"a": Head(partition=0, offset=2, segment_size=100, expire_after=after)})
    assert file.take(3) == {}


@pytest.mark.parametrize("content", [b"", b"\0" * 7, (3).to_bytes(8, "big"), (3).to_bytes(8, "big") + b"\xff"])
def test_a_file_that_is_broken_or_cannot_be_written_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    file = HeadsFile(tmp_path, b"store", "id", 0)
    file.leave(3, {})
    (found,) = tmp_path.iterdir()
    found.write_bytes(content)
    assert file.take(3) == {}
    away = HeadsFile(tmp_path / "gone", b"store", "id", 0)
    away.leave(3, {})
    assert away.take(3) == {}
