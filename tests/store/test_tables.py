"""Cases that look into the embedded tables, or at what a read asks for."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.core.entry import decode
from everlog.core.events import Event
from everlog.core.fold import fold
from everlog.core.record import NewRecord
from everlog.errors import IntegrityViolated, ReplicationFailed
from everlog.testing import replicate
from everlog.testing.journal_support import events, read
from tests.support import append_record, delete_record, mark_record, pinned_topic, purge_record, small_config


def tables(log: Everlog) -> dict[str, list[tuple]]:
    """Everything in the store, but for the pointers."""
    with closing(sqlite3.connect(log.config.folder / "store.db")) as connection:
        names = (
            "metajournal",
            "journal",
            "quarantine",
            "rejected",
            "verdict",
            "snapshot_buffer",
            "tag_views",
            "tag_write_progress",
        )
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4").fetchall() for name in names}


def execute(log: Everlog, statement: str, *parameters: object) -> list[tuple]:
    with closing(sqlite3.connect(log.config.folder / "store.db", isolation_level=None)) as connection:
        return connection.execute(statement, parameters).fetchall()


class Calls:
    """Counts the calls of one method and notes their keyword arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> None:
        self.arguments: list[dict] = []
        original = getattr(target, name)

        async def spy(*args, **kwargs):
            self.arguments.append(kwargs)
            return await original(*args, **kwargs)

        monkeypatch.setattr(target, name, spy)


@pytest.mark.case("kafka-journal", 27)
async def test_marks_alone_write_nothing_but_the_pointer(small_log):
    """A batch of marks only: pointer2 reaches the last one, no table changes, and the next batch starts behind it."""
    await small_log.journal("t").append("k", events(1, 3))
    await replicate(small_log)
    before = tables(small_log)
    last = [await small_log.journal("t").mark("k", name) for name in ("a", "b")][-1]
    (done,) = await replicate(small_log)
    assert done.records == 2
    assert tables(small_log) == before
    assert await small_log.parts.store.pointer("journal-t", last.partition) == last.offset
    assert await replicate(small_log) == []


@pytest.mark.case("kafka-journal", 29)
async def test_a_journal_that_fails_does_not_stop_the_others(small_log):
    """Ok and bad in one partition and batch, the store refuses bad: ok is applied, the pointer stays; after the
    repair a rerun changes only bad."""
    journal = small_log.journal("t")
    bad = "bad"
    partition = (await journal.ref(bad, create=True)).partition
    oks = [name for at in range(20) if (await journal.ref(name := f"ok-{at}")).partition == partition]
    for journal_id in (*oks, bad):
        await journal.append(journal_id, events(1, 4))
    for table in ("journal", "metajournal"):
        execute(
            small_log,
            f"CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} WHEN NEW.id = 'bad' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END",
        )
    with pytest.raises(ReplicationFailed, match="refused"):
        await replicate(small_log)
    assert await small_log.parts.store.pointers("journal-t") == {}
    stored = [page async for page in small_log.parts.store.ids("journal-t")]
    assert sorted(name for page in stored for name in page) == sorted(oks)
    for journal_id in (*oks, bad):
        assert await read(journal, journal_id) == [1, 2, 3, 4], "reads stay right from the tail"
    before = tables(small_log)
    for table in ("journal", "metajournal"):
        execute(small_log, f"DROP TRIGGER refuse_{table}")
    await replicate(small_log)
    after = tables(small_log)
    for table, rows in before.items():
        assert [row for row in after[table] if "bad" not in row] == rows
    assert await read(journal, bad) == [1, 2, 3, 4]
    assert (await small_log.status()).lag == 0


@pytest.mark.case("kafka-journal", 32)
async def test_a_pointer_keeps_the_time_of_its_creation(small_log, clock):
    """The first publish of a partition sets created = updated; later ones move only `updated`."""
    journal = small_log.journal("t")
    times = []
    for _ in range(3):
        await journal.mark("k")
        await replicate(small_log)
        times += execute(small_log, "SELECT offset, created, updated FROM pointer2")
        clock.advance(1)
    start = times[0][1]
    assert times == [(0, start, start), (1, start, start + 1000), (2, start, start + 2000)]


@pytest.mark.case("kafka-journal", 34)
async def test_rows_are_written_before_the_head(tmp_path, clock):
    """An append over five segments: the statements that write rows all come before the one that writes the head."""
    statements: list[str] = []
    config = small_config(tmp_path)
    async with connect(config, clock=clock, trace=lambda sql, _: statements.append(sql)) as log:
        await log.journal("t").append("k", events(1, 15))
        await replicate(log)
        assert len({row[2] for row in execute(log, "SELECT id, topic, segment FROM journal")}) == 5
    written = [sql.split()[2] for sql in statements if sql.startswith("INSERT INTO")]
    rows = [at for at, table in enumerate(written) if table == "journal"]
    (head,) = [at for at, table in enumerate(written) if table == "metajournal"]
    assert rows
    assert max(rows) < head


@pytest.mark.case("kafka-journal", 36)
async def test_a_read_takes_from_the_log_only_what_the_store_lacks(small_log, monkeypatch):
    """Stored 1..3, tail 4 and 5: the read gives each once, and asks the log for what is above the pointer."""
    journal = small_log.journal("t")
    for number in (1, 2, 3):
        await journal.append("k", Event(number))
    await replicate(small_log)
    for number in (4, 5):
        await journal.append("k", Event(number))
    tail = Calls(monkeypatch, small_log.parts.log, "tail")
    assert await read(journal) == [1, 2, 3, 4, 5]
    assert [(call["after"], call["before"]) for call in tail.arguments] == [(2, 5)]


@pytest.mark.case("kafka-journal", 37)
async def test_a_replicated_journal_is_read_without_the_log(small_log, monkeypatch):
    """Once the pointer has reached the end, a read asks the log for no record (there is no marker: the end offset)."""
    journal = small_log.journal("t")
    await journal.append("k", events(1, 5))
    await replicate(small_log)
    tail = Calls(monkeypatch, small_log.parts.log, "tail")
    assert await read(journal) == [1, 2, 3, 4, 5]
    assert await journal.pointer("k") == 5
    assert tail.arguments == []


@pytest.mark.case("kafka-journal", 38)
async def test_an_empty_log_is_not_read(small_log, monkeypatch):
    """A partition that ends at offset 0 (there is no marker at 0): empty, without asking for records or rows."""
    journal = small_log.journal("t")
    await journal.ref("k", create=True)
    tail = Calls(monkeypatch, small_log.parts.log, "tail")
    rows = Calls(monkeypatch, small_log.parts.store, "rows")
    assert await read(journal) == []
    assert await journal.pointer("k") is None
    assert tail.arguments == rows.arguments == []


@pytest.mark.case("kafka-journal", 39)
async def test_an_unreplicated_delete_or_purge_is_seen(small_log, monkeypatch):
    """Stored 1..5. Delete 3 in the tail: 4 and 5, pointer 5. Purge in the tail: nothing, and no row is asked for."""
    journal = small_log.journal("t")
    for journal_id in ("deleted", "purged"):
        await journal.append(journal_id, events(1, 5))
    await replicate(small_log)
    await journal.delete("deleted", to=3)
    await journal.purge("purged")
    assert await read(journal, "deleted") == [4, 5]
    assert await journal.pointer("deleted") == 5
    rows = Calls(monkeypatch, small_log.parts.store, "rows")
    assert await read(journal, "purged") == []
    assert await journal.pointer("purged") is None
    assert rows.arguments == []


@pytest.mark.case("kafka-journal", 40)
async def test_a_new_life_in_the_tail_hides_the_stored_one(small_log):
    """Stored 1..3, tail purge and append 1: only the new event 1, pointer 1; the same after replication."""
    journal = small_log.journal("t")
    await journal.append("k", [Event(f"old {n}") for n in (1, 2, 3)])
    await replicate(small_log)
    await journal.purge("k")
    await journal.append("k", Event("new"))
    for _ in range(2):
        assert [(e.seq_nr, e.payload) async for e in journal.read("k")] == [(1, "new")]
        assert await journal.pointer("k") == 1
        await replicate(small_log)


@pytest.mark.case("kafka-journal", 42, 43)
@pytest.mark.parametrize("replicated", [False, True])
async def test_gaps_hide_nothing_and_deletes_do_not_go_back(tmp_path, clock, replicated):
    """Segments of two. Appends 1, 3, 4: all three. Of 1..6 delete 4, then 3: 5 and 6 are left and delete_to is 4."""
    async with connect(small_config(tmp_path, segment_size=2), clock=clock) as log:
        journal = log.journal("t")
        await journal.append("gap", events(1, 1))
        await journal.append("gap", events(3, 4))
        await journal.append("k", events(1, 6))
        for to in (4, 3):
            await journal.delete("k", to=to)
            if replicated:
                await replicate(log)
        assert await read(journal, "gap") == [1, 3, 4]
        assert await read(journal) == [5, 6]
        assert (await journal.head("k")).delete_to == 4


COPY = (
    "INSERT INTO journal SELECT id, topic, segment, seq_nr, timestamp + 1, partition, offset, origin, version, {}, "
    "tags, metadata, payload_type, payload_txt, payload_bin, headers, append_id, ordering FROM journal WHERE seq_nr = 1"
)


@pytest.mark.case("kafka-journal", 44)
async def test_a_number_stored_twice_is_an_integrity_error(tmp_path, clock):
    """Two rows of one seqNr and life, at two times: a read fails; with the check off it gives both."""
    for unique in (True, False):
        config = small_config(tmp_path / str(unique), unique_seq_nrs=unique)
        async with connect(config, clock=clock) as log:
            journal = log.journal("t")
            await journal.append("k", events(1, 2))
            await replicate(log)
            execute(log, COPY.format("meta_record_id"))
            if unique:
                with pytest.raises(IntegrityViolated):
                    await read(journal)
            else:
                assert await read(journal) == [1, 1, 2]


@pytest.mark.case("kafka-journal", 45)
async def test_rows_of_another_life_are_left_out(tmp_path, clock, caplog):
    """A left-over row with another record_id: dropped and logged; with correlation off it is kept, with a warning."""
    for correlate, level, expected in ((True, logging.ERROR, [1, 2]), (False, logging.WARNING, [1, 1, 2])):
        config = small_config(tmp_path / str(correlate), correlate_events=correlate, unique_seq_nrs=correlate)
        async with connect(config, clock=clock) as log:
            journal = log.journal("t")
            await journal.append("k", events(1, 2))
            await replicate(log)
            execute(log, COPY.format("'99999999-9999-4999-8999-999999999999'"))
            caplog.clear()
            assert await read(journal) == expected
            assert [record.levelno for record in caplog.records if "another life" in record.message] == [level]


@pytest.mark.case("kafka-journal", 46)
@pytest.mark.parametrize("max_known_journals", [1, 100])
async def test_what_a_writer_remembers_is_never_wrong(tmp_path, clock, max_known_journals):
    """There is no head cache; what is remembered is a writer's last state of a journal. Remembered, dropped for lack
    of room, or overtaken by another process: appends and reads are right, replicated or not."""
    config = small_config(tmp_path, max_known_journals=max_known_journals)
    async with connect(config, clock=clock) as one, connect(config, clock=clock) as two:
        expected: dict[str, list[int]] = {"a": [], "b": []}
        for at in range(12):
            for writer in (one, two) if at % 3 else (two, two, one):
                for journal_id, found in expected.items():
                    token = await writer.journal("t").append(journal_id, Event(at))
                    found.append(token.range.first)
                    assert found == list(range(1, len(found) + 1))
                    for reader in (one, two):
                        assert await reader.journal("t").pointer(journal_id) == len(found)
            if at % 4 == 3:
                await replicate(two, leave=at % 3)
        for reader in (one, two):
            for journal_id, found in expected.items():
                assert await read(reader.journal("t"), journal_id) == found


TAILS = {
    "append": ([append_record(0, 1, 2)], 2, 0),
    "append, delete beyond": ([append_record(0, 1, 2), delete_record(1, 3)], 2, 2),
    "append, deletes that go down": ([append_record(0, 1, 2), delete_record(1, 2), delete_record(2, 1)], 2, 2),
    "append on append": ([append_record(0, 1, 2), append_record(1, 3, 5)], 5, 0),
    "append, delete, append": ([append_record(0, 1, 2), delete_record(1, 1), append_record(2, 3)], 3, 1),
    "delete alone": ([delete_record(0, 10)], 10, 10),
    "deletes": ([delete_record(0, 10), delete_record(1, 6)], 10, 10),
    "purge": ([append_record(0, 1, 2), purge_record(1)], 0, 0),
    "purge, append": ([append_record(0, 1, 3), purge_record(1), append_record(2, 1)], 1, 0),
    "purge, delete": ([append_record(0, 1, 3), purge_record(1), delete_record(2, 4)], 4, 4),
    "marks": ([mark_record(0), append_record(1, 1), mark_record(2)], 1, 0),
    "append not from the beginning": ([append_record(0, 5, 6), delete_record(1, 4)], 6, 4),
}


@pytest.mark.case("kafka-journal", 48)
@pytest.mark.parametrize("name", TAILS)
def test_a_tail_folds_to_the_same_state_however_it_is_cut(name):
    """The state of a key's tail (seqNr, delete_to; 0 and 0: absent or purged). Folded in parts, one after another, it
    equals the fold of the whole. Where the original clamps wrongly or lets seqNrs go back, our rules hold instead:
    a delete of an absent journal creates it at that seqNr, and appends below it are forks."""
    records, seq_nr, delete_to = TAILS[name]
    topic = pinned_topic()
    whole = fold(None, [decode(record) for record in records], topic)
    assert whole.head is not None
    assert (whole.head.seq_nr, whole.head.delete_to) == (seq_nr, delete_to)
    for cut in range(len(records) + 1):
        head = fold(None, [decode(record) for record in records[:cut]], topic).head
        assert fold(head, [decode(record) for record in records[cut:]], topic).head == whole.head


@pytest.mark.case("kafka-journal", 54)
@pytest.mark.parametrize(
    "action", [b"{", b'{"append":{"range":{"from":3,"to":1},"payloadType":"json"}}', b'{"mark":1}']
)
async def test_a_misplaced_record_touches_no_journal(small_log, action):
    """In the wrong partition, or with a key that is no text, a record is shown and nothing else, readable or not."""
    journal = small_log.journal("t")
    await journal.append("k", events(1, 2))
    ref = await journal.ref("k")
    wrong = 1 - ref.partition
    await small_log.parts.log.append(ref.log_topic, NewRecord(wrong, 1, b"k", action, b"x"))
    await small_log.parts.log.append(ref.log_topic, NewRecord(ref.partition, 1, b"\xff", action, b"x"))
    for _ in range(2):
        await journal.append("k", Event(1))
        await replicate(small_log)
    assert await read(journal) == [1, 2, 3, 4]
    shown = [item async for item in small_log.quarantine.list()]
    assert sorted((item.partition, item.kind, item.key) for item in shown) == sorted(
        [(wrong, "misplaced", b"k"), (ref.partition, "misplaced", b"\xff")]
    )
    assert (await small_log.status()).quarantined == 2
    assert (await small_log.status()).lag == 0


async def test_a_head_survives_the_store_byte_for_byte(small_log):
    """The stored head of a busy journal is the fold of its log, column by column, but for the garbage."""
    journal = small_log.journal("t")
    await journal.append("k", events(1, 5))
    await journal.delete("k", to=2)
    state = await journal.head("k")
    await replicate(small_log)
    stored = await small_log.parts.store.head("journal-t", "k")
    assert msgspec.structs.replace(stored, garbage=()) == state
