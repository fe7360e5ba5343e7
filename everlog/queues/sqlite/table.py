"""The rows of a queue in its bucket files, as the engine sees them: one table, whichever file a row is in.

What schedules are is in the main file, how far they are in the buckets. SQLite commits file by file: so the mark of a
schedule goes into the file of the job that was put, in the same transaction, and a crash leaves both or neither. The
latest mark of all files counts. If several jobs were put they are all new ones, in the open bucket.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.queues.operations import HistoryPlace, JobPlace, LetterPlace
from everlog.queues.rows import PROCESSING, Attempt, DeadLetter, EndedRow, Flag, Image, JobRow
from everlog.queues.schedule import ScheduleRow
from everlog.queues.sqlite.catalog import SQL, KnownQueue
from everlog.queues.sqlite.files import GROUPED, ITEM, BucketFiles, OpenBucket
from everlog.queues.table import MAX_TURNS, NextMoments, QueueTable, TableCounts, TableWrite

_pack = msgspec.msgpack.Encoder().encode
_image = msgspec.msgpack.Decoder(Image).decode
_attempts = msgspec.msgpack.Decoder(tuple[Attempt, ...]).decode
_letter = msgspec.msgpack.Decoder(DeadLetter).decode
_ended = msgspec.msgpack.Decoder(EndedRow).decode
_flag = msgspec.msgpack.Decoder(Flag).decode
_schedule = msgspec.msgpack.Decoder(ScheduleRow).decode
_json = msgspec.json.Encoder().encode
MAX_ENTRY = 2**63 - 1
# As many keys are looked up with one statement, which is always the same one.
LOOK_AT_ONCE = 100
# Fewer due jobs of groups are looked at one by one.
FEW_DUE = 100
ITEM["find_all"] = ITEM["find_all"].replace("{hashes}", ", ".join("?" * LOOK_AT_ONCE))


def row_from(found: tuple[Any, ...]) -> JobRow:
    """A row from the columns of a query: they stand in the order of the fields."""
    if found[20] is None and found[23] is None:  # neither a successor nor failed attempts, as most rows
        return JobRow(found[0], found[1], found[2], Image(*found[3:12]), *found[12:23])
    (entry, key, key_hash), state = found[:3], found[12:24]
    status, claimed_ms, start_ms, lease_ms, timeouts, lifetime, token, owner, slot, stop, stop_reason, attempts = state
    return JobRow(
        entry,
        key,
        key_hash,
        Image(*found[3:12]),
        status,
        claimed_ms,
        start_ms,
        lease_ms,
        timeouts,
        lifetime,
        token,
        owner,
        None if slot is None else _image(slot),
        stop,
        stop_reason,
        () if attempts is None else _attempts(attempts),
    )


class SqliteTable(QueueTable):
    """One queue. Used inside one transaction over all its buckets, or, to read only, without any."""

    def __init__(self, files: BucketFiles, known: KnownQueue, buckets: Sequence[OpenBucket]) -> None:
        self._files = files
        self._jid = known.jid
        self._paused = known.paused
        self._buckets = buckets
        # Where a row that was read lies; the last bucket is the open one.
        self._home: dict[int, OpenBucket] = {}

    def next_entry(self) -> int:
        return self._files.next_entry()

    def _select(self, statement: str, values: tuple[object, ...]) -> list[JobRow]:
        """Rows of all buckets, from the oldest on: a row that is being moved is seen in the newer one."""
        if len(self._buckets) == 1:
            opened = self._buckets[0]
            return [row_from(found) for found in opened.connection.execute(ITEM[statement], values)]
        rows: dict[int, JobRow] = {}
        for opened in self._buckets:
            for found in opened.connection.execute(ITEM[statement], values):
                row = row_from(found)
                rows[row.entry] = row
                self._home[row.entry] = opened
        return list(rows.values())

    def _home_of(self, row: JobRow) -> OpenBucket:
        if len(self._buckets) == 1:
            return self._buckets[0]
        return self._home[row.entry]

    def find(self, key_hash: bytes, key: bytes) -> list[JobRow]:
        rows = [row for row in self._select("find", (self._jid, key_hash)) if row.key == key]
        return sorted(rows, key=lambda row: row.entry)

    def get(self, entry: int) -> JobRow | None:
        rows = self._select("get", (entry, self._jid))
        return rows[-1] if rows else None

    def save(self, row: JobRow, before: JobRow | None) -> None:
        if before is None:
            self._insert(self._buckets[-1], row)
            return
        opened = self._home_of(row)
        if _only_state(row, before):
            opened.write("update_state", (*_state(row), row.entry))
            return
        opened.write("update_all", (*_columns(row), row.entry))

    def save_all(self, writes: Sequence[TableWrite]) -> None:
        """What is alike goes to SQLite in one go."""
        if len(self._buckets) > 1:
            return super().save_all(writes)
        inserts, states, others = [], [], []
        for row, before in writes:
            if before is None:
                inserts.append((row.entry, self._jid, row.hash, row.key, *_columns(row)))
            elif _only_state(row, before):
                states.append((*_state(row), row.entry))
            else:
                others.append((*_columns(row), row.entry))
        for statement, rows in (("insert", inserts), ("update_state", states), ("update_all", others)):
            self._buckets[0].write_all(statement, rows)
        return None

    def refile(self, row: JobRow, before: JobRow) -> None:
        """A row of an older bucket moves to the open one, which notes it: see `BucketFiles`."""
        home, newest = self._home_of(before), self._buckets[-1]
        if home is newest:
            self.save(row, before)
            return
        self._insert(newest, row)
        newest.write("add_moved", (row.entry,))
        home.write("delete", (row.entry,))

    def _insert(self, opened: OpenBucket, row: JobRow) -> None:
        opened.write("insert", (row.entry, self._jid, row.hash, row.key, *_columns(row)))
        self._home[row.entry] = opened

    def remove(self, row: JobRow) -> None:
        self._home_of(row).write("delete", (row.entry,))

    def end(self, entry: int, token: int) -> bool:
        if len(self._buckets) > 1:
            return False  # which of them has it, is to be looked up first
        return self._buckets[0].write("end", (entry, self._jid, token)).rowcount > 0

    def end_all(self, handles: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """One statement for each token that occurs: nearly all jobs end under their first."""
        if len(self._buckets) > 1:
            return set()
        ended: set[tuple[int, int]] = set()
        for token in {token for _, token in handles}:
            entries = _json([entry for entry, other in handles if other == token])
            rows = self._buckets[0].write("end_all", (entries, self._jid, token))
            ended.update((entry, token) for (entry,) in rows.fetchall())
        return ended

    def find_all(self, hashes: Sequence[bytes]) -> dict[bytes, Sequence[JobRow] | None] | None:
        if len(self._buckets) > 1:
            return None  # what merges also moves to the newest
        found: dict[bytes, Sequence[JobRow] | None] = {}
        for first in range(0, len(hashes), LOOK_AT_ONCE):
            some = hashes[first : first + LOOK_AT_ONCE]
            for row in self._select("find_all", (self._jid, *some, *[some[0]] * (LOOK_AT_ONCE - len(some)))):
                found[row.hash] = (*(found.get(row.hash) or ()), row)
        return found

    def priorities(self, *, grouped: bool) -> Iterator[int]:
        """A loose scan: one seek per priority that occurs, however many rows it has."""
        last = -1
        while True:
            found = [
                opened.connection.execute(ITEM[name], (self._jid, last)).fetchone()[0]
                for name in _names("next_priority", grouped)
                for opened in self._buckets
            ]
            priority = min((one for one in found if one is not None), default=None)
            if priority is None:
                return
            yield priority
            last = priority

    def due(self, priority: int, now: int, limit: int, group: str) -> list[JobRow]:
        if group:
            rows = self._select("due_of_group", (self._jid, priority, now, now, group, limit))
        else:
            rows = self._select("due", (self._jid, priority, now, now, limit))
        return rows if len(self._buckets) == 1 else heapq.nsmallest(limit, rows, key=lambda row: row.order)

    def groups_wait(self) -> bool:
        return any(opened.connection.execute(ITEM["groups_wait"], (self._jid,)).fetchone() for opened in self._buckets)

    def heads(self, priority: int, now: int) -> list[tuple[str, JobPlace]]:
        """If few jobs are due, look at all of them; else at the first of each group, with a seek for each."""
        heads: dict[str, JobPlace] = {row.image.group: row.order for row in self.due(priority, now, 1, "")}
        for opened in self._buckets:
            values = (self._jid, priority, now, now, FEW_DUE)
            rows = opened.connection.execute(ITEM["some_grouped"], values).fetchall()
            if len(rows) == FEW_DUE:
                rows = opened.connection.execute(ITEM["heads"], (self._jid, priority, now)).fetchall()
            for group, *rest in rows:
                place = (priority, *rest)
                if group not in heads or place < heads[group]:
                    heads[group] = place
        return list(heads.items())

    def overdue(self, now: int, limit: int) -> list[JobRow]:
        rows = self._select("overdue", (self._jid, now, limit))
        return rows if len(self._buckets) == 1 else heapq.nsmallest(limit, rows, key=lambda row: row.deadline_ms)

    def each_overdue(self, now: int, limit: int) -> Iterator[JobRow]:
        seen: set[int] = set()
        for opened in reversed(self._buckets):  # a row that is being moved is seen in the newer one
            for found in opened.connection.execute(ITEM["overdue"], (self._jid, now, limit - len(seen))):
                if found[0] not in seen:
                    seen.add(found[0])
                    yield row_from(found)

    def running(self, now: int, limit: int) -> list[JobRow]:
        rows = self._select("running", (self._jid, now, limit))
        return rows if len(self._buckets) == 1 else heapq.nsmallest(limit, rows, key=lambda row: row.deadline_ms)

    def expired(self, now: int, limit: int) -> list[JobRow]:
        return self._select("expired", (self._jid, now, now // 1000, limit))[:limit]

    def live_leases(self, now: int) -> int:
        return self._sum("live_leases", (self._jid, now))

    def times(self, now: int) -> NextMoments:
        grouped = self.groups_wait()
        process = [
            self._least(name, (self._jid, priority, now))
            for priority in list(self.priorities(grouped=grouped))
            for name in _names("next_process", grouped)
        ]
        return NextMoments(
            min((one for one in process if one is not None), default=None),
            self._least("next_deadline", (self._jid,)),
            self._least("next_expiry", (self._jid,)),
        )

    def counts(self, now: int) -> TableCounts:
        waiting = [row for name in _names("count_waiting", True) for row in self._all(name, (now, self._jid, now))]
        overdue = self._all("count_overdue", (self._jid, now, now))
        late = sum(row[0] for row in overdue)
        dates = [row[2] for row in waiting] + [row[1] for row in overdue]
        oldest = min((date for date in dates if date is not None and date <= now), default=None)
        ready = sum(row[1] for row in waiting)
        return TableCounts(ready + late, sum(row[0] for row in waiting) - ready, self.live_leases(now), oldest)

    def page(self, after: JobPlace | None, now: int, limit: int) -> list[JobRow]:
        values = (self._jid, *(after or (-1, 0, b"", 0)), now, limit)
        rows = [row for name in _names("page", self.groups_wait()) for row in self._select(name, values)]
        return heapq.nsmallest(limit, rows, key=lambda row: row.order)

    def _all(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return [opened.connection.execute(ITEM[statement], values).fetchone() for opened in self._buckets]

    def _sum(self, statement: str, values: tuple[object, ...]) -> int:
        return sum(row[0] for row in self._all(statement, values))

    def _least(self, statement: str, values: tuple[object, ...]) -> int | None:
        found: Iterable[int | None] = (row[0] for row in self._all(statement, values))
        return min((one for one in found if one is not None), default=None)

    def starts(self, since: int) -> list[int]:
        rows = self._files.main.connection.execute(SQL["starts"], (self._jid, since))
        return [at for at, count in rows for _ in range(count)]

    def add_starts(self, now: int, count: int, since: int) -> None:
        main = self._files.begin_main()
        main.execute(SQL["forget_starts"], (self._jid, since))
        main.execute(SQL["add_starts"], (self._jid, now, count))

    def group_leases(self, group: str) -> int:
        return self._sum("group_leases", (self._jid, group))

    def group_starts(self, group: str, since: int) -> list[int]:
        rows = self._files.main.connection.execute(SQL["group_starts"], (self._jid, group, since))
        return [at for at, count in rows for _ in range(count)]

    def add_group_starts(self, now: int, counts: Mapping[str, int], since: int) -> None:
        main = self._files.begin_main()
        main.execute(SQL["forget_group_starts"], (self._jid, since))
        main.executemany(SQL["add_group_starts"], [(self._jid, group, now, count) for group, count in counts.items()])

    def turns(self, groups: Collection[str]) -> dict[str, int]:
        wanted = _json(list(groups)).decode()
        return dict(self._files.main.connection.execute(SQL["turns"], (wanted, self._jid)).fetchall())

    def add_turns(self, groups: Sequence[str]) -> None:
        main = self._files.begin_main()
        (last,) = main.execute(SQL["last_turn"], (self._jid,)).fetchone()
        main.executemany(SQL["add_turn"], [(self._jid, group, turn) for turn, group in enumerate(groups, last + 1)])
        main.execute(SQL["forget_turns"], (self._jid, MAX_TURNS))

    def bury(self, letter: DeadLetter) -> None:
        main = self._files.begin_main()
        main.execute(SQL["bury"], (self._jid, letter.entry, letter.dead_ms, _pack(letter)))

    def dead(self, entry: int) -> DeadLetter | None:
        found = self._files.main.connection.execute(SQL["dead"], (self._jid, entry)).fetchone()
        return None if found is None else _letter(found[0])

    def unbury(self, entry: int) -> None:
        self._files.begin_main().execute(SQL["unbury"], (self._jid, entry))

    def dead_letters(self, before: LetterPlace | None, limit: int) -> list[DeadLetter]:
        values = (self._jid, *(before or (MAX_ENTRY, MAX_ENTRY)), limit)
        return [_letter(letter) for (letter,) in self._files.main.connection.execute(SQL["dead_letters"], values)]

    def drop_dead(self, until_ms: int, limit: int) -> int:
        old = self._files.main.connection.execute(SQL["old_dead"], (self._jid, until_ms, limit)).fetchall()
        if old:  # most often there are none, and the main file need not be locked
            entries = [(self._jid, entry) for (entry,) in old]
            self._files.begin_main().executemany(SQL["unbury"], entries)
        return len(old)

    def count_dead(self) -> int:
        (count,) = self._files.main.connection.execute(SQL["count_dead"], (self._jid,)).fetchone()
        return int(count)

    def keep_ended(self, ended: EndedRow, max_kept: int) -> None:
        main = self._files.begin_main()
        number = main.execute(SQL["last_ended"], (self._jid,)).fetchone()[0] + 1
        main.execute(SQL["keep_ended"], (self._jid, number, *ended.place, ended.hash, _pack(ended)))
        main.execute(SQL["limit_ended"], (self._jid, number - max_kept))

    def history(self, before: HistoryPlace | None, key: tuple[bytes, bytes] | None, limit: int) -> list[EndedRow]:
        place = before or (MAX_ENTRY, MAX_ENTRY, MAX_ENTRY)
        main = self._files.main.connection
        if key is None:
            return [_ended(ended) for (ended,) in main.execute(SQL["history"], (self._jid, *place, limit))]
        rows = (_ended(ended) for (ended,) in main.execute(SQL["history_of_key"], (self._jid, key[0], *place)))
        return list(islice((row for row in rows if row.key == key[1]), limit))  # hashes may collide, keys do not

    def ended_of(self, entry: int, limit: int) -> list[EndedRow]:
        rows = self._files.main.connection.execute(SQL["ended_of"], (self._jid, entry, limit))
        return [_ended(ended) for (ended,) in rows]

    def drop_ended(self, until_ms: int, limit: int) -> int:
        old = self._files.main.connection.execute(SQL["old_ended"], (self._jid, until_ms, limit)).fetchall()
        if old:
            self._files.begin_main().executemany(SQL["drop_ended"], [(self._jid, number) for (number,) in old])
        return len(old)

    def flag(self, reason: str) -> Flag | None:
        found = self._files.main.connection.execute(SQL["flag"], (self._jid, reason)).fetchone()
        return None if found is None else _flag(found[0])

    def put_flag(self, flag: Flag) -> None:
        self._files.begin_main().execute(SQL["put_flag"], (self._jid, flag.reason, _pack(flag)))

    def drop_flag(self, reason: str) -> bool:
        return self._files.begin_main().execute(SQL["drop_flag"], (self._jid, reason)).rowcount > 0

    def flags(self) -> list[Flag]:
        rows = self._files.main.connection.execute(SQL["flags"], (self._jid,))
        return [_flag(flag) for (flag,) in rows]

    def paused(self) -> bool:
        return self._paused

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._files.begin_main().execute(SQL["pause"], (int(paused), self._jid))

    def schedules(self) -> list[ScheduleRow]:
        found: dict[str, ScheduleRow] = {}
        for name, row, done_ms, fired_ms in self._files.main.connection.execute(SQL["schedules"], (self._jid,)):
            found[name] = replace(_schedule(row), done_ms=done_ms, fired_ms=fired_ms)
        for opened in self._buckets if found else ():
            for name, done_ms, fired_ms in opened.connection.execute(ITEM["marks"], (self._jid,)):
                if name in found and done_ms > found[name].done_ms:
                    found[name] = replace(found[name], done_ms=done_ms, fired_ms=fired_ms)
        return list(found.values())

    def save_schedule(self, row: ScheduleRow) -> None:
        values = (self._jid, row.name, _pack(row), row.done_ms, row.fired_ms)
        self._files.begin_main().execute(SQL["put_schedule"], values)

    def mark_fired(self, row: ScheduleRow, entry: int | None) -> None:
        known = entry is not None and len(self._buckets) > 1
        opened = self._home[entry] if known and entry in self._home else self._buckets[-1]
        opened.write("mark", (self._jid, row.name, row.done_ms, row.fired_ms))

    def drop_schedule(self, name: str) -> None:
        """A mark that a crash leaves behind does no harm: a schedule of that name that comes later begins later."""
        self._files.begin_main().execute(SQL["drop_schedule"], (self._jid, name))
        for opened in self._buckets:
            opened.write("unmark", (self._jid, name))


def _names(statement: str, grouped: bool) -> tuple[str, ...]:
    """A statement on waiting jobs: for those without a group, and if that is needed for the others, too."""
    return (statement, statement + GROUPED) if grouped else (statement,)


def _only_state(row: JobRow, before: JobRow) -> bool:
    return row.image is before.image and row.slot is before.slot and row.attempts is before.attempts


def _state(row: JobRow) -> tuple[Any, ...]:
    """The columns of the statement `update_state`: what changes while a job runs."""
    return (
        row.status,
        row.claimed_ms,
        row.start_ms,
        row.lease_ms,
        row.deadline_ms if row.status == PROCESSING else None,
        row.timeouts,
        row.lifetime,
        row.token,
        row.owner,
        row.stop,
        row.stop_reason,
    )


def _columns(row: JobRow) -> tuple[Any, ...]:
    """All columns that an update may change, in the order of `update_all` and, behind the key, of `insert`."""
    image = row.image
    return (
        image.priority,
        image.process_ms,
        image.inserted_ms,
        image.expires_s,
        image.data_date,
        image.schema,
        *_state(row),
        _pack(row.attempts) if row.attempts else None,
        None if row.slot is None else _pack(row.slot),
        image.data,
        image.kind,
        image.group,
    )
