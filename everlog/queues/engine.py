"""One shard of a queue: takes an operation and `now`, changes its table, returns an answer. It has no clock.

All of an operation happens in one step; a store makes that step durable before the caller hears the answer.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any

from msgspec.structs import replace

from everlog.config.queue_options import QueueSettings
from everlog.queues import rules
from everlog.queues.claim_order import ClaimOrder
from everlog.queues.inquiry import find_job
from everlog.queues.operations import (
    AckFlag,
    AskDue,
    AskHead,
    AskSchedules,
    AskStats,
    BeatAnswer,
    Cancel,
    Claim,
    Done,
    DueAnswer,
    Fail,
    FindJob,
    FireSchedules,
    Forget,
    FoundJob,
    Get,
    Handle,
    Heartbeat,
    JobLease,
    JobPlace,
    ListDead,
    ListFlags,
    ListHistory,
    ListLeases,
    ListSchedules,
    Operation,
    Pause,
    PauseSchedule,
    Peek,
    PurgeJobs,
    Put,
    PutAnswer,
    QueueAnswer,
    RaiseFlag,
    Release,
    RemoveSchedule,
    Revive,
    SetSchedule,
    Stats,
    Sweep,
)
from everlog.queues.removal import purge
from everlog.queues.rows import WAITING, AttemptReason, EndedRow, Flag, Image, JobRow, Packet
from everlog.queues.rules import RowChange
from everlog.queues.schedule import ScheduleRow
from everlog.queues.table import QueueTable, TableWrite
from everlog.queues.timetable import Timetable
from everlog.queues.wait_histogram import count_claimed

SWEEP = 500
# So many overdue rows a look at what waits takes in, those whose leases ended first.
MAX_OVERDUE_SEEN = 10_000
# A flag that is raised over and over counts once per interval.
REPEAT_MS = 60_000


class Engine:
    """Applies operations to a table. `counted` says what happened, by kind, since it was made; `raised` which flags.

    `sweep`: how many overdue and expired rows a claim turns over first, at most. Nothing depends on it but speed:
    expired rows are never given out, swept or not.
    """

    def __init__(self, table: QueueTable, settings: QueueSettings, *, sweep: int = SWEEP) -> None:
        self.table = table
        self.settings = settings
        self.counted: Counter[str] = Counter()
        self.raised: list[Flag] = []
        self._sweep_limit = sweep

    def apply(self, operation: Operation, now: int) -> QueueAnswer:
        """Do it; the answer is what the operation's client waits for."""
        answer: QueueAnswer = _ACTIONS[type(operation)](self, operation, now)
        return answer

    def apply_all(self, operations: Sequence[Operation], now: int) -> list[QueueAnswer]:
        """Do them one after the other, or with the same result: what is alike, together."""
        answers: list[QueueAnswer] = []
        for kind, found in groupby(operations, type):
            together, alike = _TOGETHER.get(kind), list(found)
            if together is None or len(alike) == 1:
                answers += [self.apply(operation, now) for operation in alike]
            else:
                answers += together(self, alike, now)
        return answers

    def _put(self, operation: Put, now: int) -> PutAnswer:
        packet = operation.packet
        image, skewed = rules.arrive(packet, now, self.settings)
        if skewed:
            self._raise_flag("clock_skew", now, packet.key)
        answer = self._arrive(packet, image, now)
        self.counted[answer.result] += 1
        if self.settings.backlog_ms:
            self._check_backlog(self._order(now).first(1), now)
        return answer

    def _put_all(self, operations: Sequence[Put], now: int) -> list[PutAnswer]:
        """With one look at all keys, new jobs and those that merge with a waiting one are written together."""
        held = self._held_by([operation.packet.hash for operation in operations])
        if held is None:
            return [self._put(operation, now) for operation in operations]
        pending: dict[int, TableWrite] = {}
        answers: list[PutAnswer] = []
        for operation in operations:
            answer = self._put_simply(operation.packet, now, held, pending)
            if answer is None:
                self.table.save_all(list(pending.values()))
                pending.clear()
                answer = self._put(operation, now)
                held[operation.packet.hash] = None  # changed: it is looked up again
            answers.append(answer)
        self.table.save_all(list(pending.values()))
        return answers

    def _held_by(self, hashes: Sequence[bytes]) -> dict[bytes, Sequence[JobRow] | None] | None:
        """The rows of keys, by hash; None if puts are better made one by one."""
        if self.settings.backlog_ms:
            return None  # that is looked at after every single put
        return self.table.find_all(hashes) if self.settings.merge else {}

    def _put_simply(
        self, packet: Packet, now: int, held: dict[bytes, Sequence[JobRow] | None], pending: dict[int, TableWrite]
    ) -> PutAnswer | None:
        """The two most common cases of `_put`: a new key, and one that waits. None: it is another case."""
        image, skewed = rules.arrive(packet, now, self.settings)
        rows = held.get(packet.hash, ()) if self.settings.merge else ()
        if skewed or rows is None or len(rows) > 1:
            return None
        if not rows:
            row, before = JobRow(self.table.next_entry(), packet.key, packet.hash, image), None
        else:
            row = before = rows[0]
            waits = row.status == WAITING and not rules.is_expired(row.image, now)
            if row.key != packet.key or not waits or rules.is_late(row.image, image, self.settings):
                return None
            row = rules.merge_waiting(row, image, self.settings)
        answer = PutAnswer("CREATED" if before is None else "MERGED", row.entry)
        # Several puts of a key are one write: from what the table has to what the last one makes of it.
        pending[row.entry] = (row, pending[row.entry][1] if row.entry in pending else before)
        held[packet.hash] = (row,)
        self.counted[answer.result] += 1
        return answer

    def _check_backlog(self, rows: Sequence[JobRow], now: int) -> None:
        """A job that could have started longer ago than `backlog`: there are too few workers, or none."""
        if rows and now - rows[0].image.process_ms > self.settings.backlog_ms:
            flag = self.table.flag("backlog")
            if flag is None or now - flag.last_ms >= REPEAT_MS:
                self._raise_flag("backlog", now, rows[0].key)

    def _arrive(self, packet: Packet, image: Image, now: int) -> PutAnswer:
        if not self.settings.merge:
            return self._create(packet, image)
        rows = self._settled(packet.hash, packet.key, now)
        for row in rows:
            if row.status == WAITING:
                if rules.is_late(row.image, image, self.settings):
                    return PutAnswer("IGNORED_LATE", row.entry)
                self.table.refile(rules.merge_waiting(row, image, self.settings), row)
                return PutAnswer("MERGED", row.entry)
        if not rows or self.settings.on_busy == "parallel":
            return self._create(packet, image)
        return self._arrive_busy(rows[0], image, now)

    def _arrive_busy(self, row: JobRow, image: Image, now: int) -> PutAnswer:
        if self.settings.on_busy == "reject":
            return PutAnswer("REJECTED", row.entry)
        if self.settings.on_busy == "drop":
            return PutAnswer("DROPPED", row.entry)
        slot, _ = rules.live_slot(row, now)
        if rules.is_late(slot or row.image, image, self.settings):
            return PutAnswer("IGNORED_LATE", row.entry)
        self.table.save(rules.merge_slot(row, image, now, self.settings), row)
        return PutAnswer("SUCCESSOR" if slot is None else "SUCCESSOR_MERGED", row.entry)

    def _create(self, packet: Packet, image: Image, lifetime: int = 0) -> PutAnswer:
        row = JobRow(self.table.next_entry(), packet.key, packet.hash, image, lifetime=lifetime)
        self.table.save(row, None)
        return PutAnswer("CREATED", row.entry)

    def _settled(self, key_hash: bytes, key: bytes, now: int) -> list[JobRow]:
        """A key's rows as they must be seen now: overdue ones timed out, expired ones gone unless they run."""
        found = self.table.find(key_hash, key)
        for row in found:
            if rules.is_overdue(row, now):
                self._time_out(row, now)
            elif row.status == WAITING and rules.is_expired(row.image, now):
                self._expire(row)
            else:
                continue
            found = self.table.find(key_hash, key)
        return list(found)

    def _claim(self, operation: Claim, now: int) -> list[JobLease]:
        self._turn_over(self._sweep_limit, now)  # also of a paused queue: what is overdue or expired is not kept
        if self.table.paused():
            return []
        lease_ms = operation.lease_ms or self.settings.processing_timeout_ms
        lease_ms = min(lease_ms, self.settings.max_processing_timeout_ms)
        order = self._order(now, swept=True)
        first = order.first(min(operation.limit, order.room()), fast_only=operation.fast_only)
        if self.settings.backlog_ms:
            self._check_backlog(first, now)
        taken = [(rules.claim(row, operation.owner, now, lease_ms), row) for row in first]
        self.table.save_all(taken)
        leases = [JobLease(row, row.deadline_ms) for row, _ in taken]
        order.note_starts(first)
        count_claimed(self.counted, first, now)
        return leases

    def _heartbeat(self, operation: Heartbeat, now: int) -> BeatAnswer:
        row = self._held(operation.handle)
        if row is None:
            return BeatAnswer("LEASE_LOST")
        beaten = rules.beat(row, now)
        self.table.save(beaten, row)
        return BeatAnswer("OK", beaten.deadline_ms, row.stop, row.stop_reason)

    def _done(self, operation: Done, now: int) -> str:
        if not self.settings.keep_done_ms and self.table.end(*operation.handle):
            self.counted["DONE"] += 1
            return "OK"
        row = self._held(operation.handle)
        if row is None:
            return "LEASE_LOST"
        if self.settings.keep_done_ms:
            self.table.keep_ended(rules.ended(row, now, None, operation.result), self.settings.max_done)
        self._change(row, rules.done(row, now), now)
        self.counted["DONE"] += 1
        return "OK"

    def _done_all(self, operations: Sequence[Done], now: int) -> list[str]:
        """Use the short path where it applies, the long one otherwise; a handle that comes twice ends once."""
        if self.settings.keep_done_ms:
            return [self._done(operation, now) for operation in operations]
        ended = self.table.end_all([operation.handle for operation in operations])
        self.counted["DONE"] += len(ended)
        answers: list[str] = []
        for operation in operations:
            if operation.handle in ended:
                ended.discard(operation.handle)
                answers.append("OK")
            else:
                answers.append(self._done(operation, now))
        return answers

    def _fail(self, operation: Fail, now: int) -> str:
        row = self._held(operation.handle)
        if row is None:
            return "LEASE_LOST"
        change = rules.end_attempt(
            row,
            now,
            self.settings,
            "failed",
            reason=operation.reason,
            delay_ms=operation.delay_ms,
            retry=operation.retry,
        )
        self._change(row, change, now)
        self.counted["FAILED"] += 1
        return "OK"

    def _release(self, operation: Release, now: int) -> str:
        row = self._held(operation.handle)
        if row is None:
            return "LEASE_LOST"
        self._change(row, rules.release(row, now, self.settings, operation.delay_ms, operation.flag), now)
        self.counted["RELEASED"] += 1
        return "OK"

    def _held(self, handle: Handle) -> JobRow | None:
        """The row that a handle still holds. An overdue row still counts: no other worker has it yet."""
        row = self.table.get(handle.entry)
        if row is None or not rules.holds(row, handle.token):
            self.counted["LEASE_LOST"] += 1
            return None
        return row

    def _cancel(self, asked: Cancel, now: int) -> int:
        rows = [row for row in self._settled(asked.hash, asked.key, now) if asked.entry in (None, row.entry)]
        for row in rows:
            self._change(row, rules.cancel(row, now, asked.reason), now)
        self.counted["CANCELLED"] += len(rows)
        return len(rows)

    def _pause(self, operation: Pause, now: int) -> bool:
        changed = self.table.paused() != operation.paused
        self.table.pause(operation.paused)
        return changed

    def _revive(self, operation: Revive, now: int) -> PutAnswer | None:
        """A dead letter arrives again, as of now; the number of its lifetime's failures is kept.

        The letter stays until `Forget`, which comes when the job is safe: a crash between the two must lose nothing.
        """
        letter = self.table.dead(operation.entry)
        if letter is None:
            return None
        image = replace(letter.image, inserted_ms=now, process_ms=now)
        if rules.is_expired(image, now):  # as it is wanted all the same, it has no end any more
            image = replace(image, expires_s=0)
        packet = Packet(letter.key, letter.hash, image.data, image.priority, now, kind=image.kind, group=image.group)
        answer = self._arrive(packet, image, now)
        if answer.result in ("REJECTED", "DROPPED"):
            return answer
        row = self.table.get(answer.entry)
        assert row is not None
        self.table.save(replace(row, lifetime=max(row.lifetime, letter.lifetime)), row)
        self.counted["REVIVED"] += 1
        return answer

    def _forget(self, operation: Forget, now: int) -> bool:
        found = self.table.dead(operation.entry) is not None
        if found:
            self.table.unbury(operation.entry)
        return found

    def _ack_flag(self, operation: AckFlag, now: int) -> bool:
        return self.table.drop_flag(operation.reason)

    def _raise(self, operation: RaiseFlag, now: int) -> None:
        self._raise_flag(operation.reason, now, None, operation.owner)

    def _sweep(self, operation: Sweep, now: int) -> int:
        """What time alone brings about, without any claim; returns how many rows that changed."""
        changed = self._turn_over(operation.limit, now)
        changed += self.table.drop_dead(now - self.settings.dead_letter_ttl_ms, operation.limit)
        changed += self.table.drop_ended(now - self.settings.keep_done_ms, operation.limit)
        if self.settings.backlog_ms:
            self._check_backlog(self._order(now).first(1), now)
        return changed

    def _purge(self, operation: PurgeJobs, now: int) -> int:
        self.counted["PURGED"] += (count := purge(self.table, operation, now))
        return count

    def _turn_over(self, limit: int, now: int) -> int:
        """Time out what is overdue, remove what has expired; returns their number."""
        if limit <= 0:
            return 0
        overdue = self.table.overdue(now, limit)
        for row in overdue:
            self._time_out(row, now)
        expired = self.table.expired(now, limit)
        for row in expired:
            self._expire(row)
        return len(overdue) + len(expired)

    def _set_schedule(self, operation: SetSchedule, now: int) -> ScheduleRow | None:
        return Timetable(self.table).set(operation.schedule, now)

    def _pause_schedule(self, operation: PauseSchedule, now: int) -> ScheduleRow | None:
        return Timetable(self.table).pause(operation.name, operation.paused, now)

    def _remove_schedule(self, operation: RemoveSchedule, now: int) -> bool:
        return Timetable(self.table).remove(operation.name)

    def _fire(self, operation: FireSchedules, now: int) -> int:
        """A time that has come is a put like any other, but that no caller hears of a refusal: so a flag says it."""

        def put(packet: Packet) -> PutAnswer:
            answer = self._put(Put(packet), now)
            if answer.result == "REJECTED":
                self._raise_flag("schedule_refused", now, packet.key)
            return answer

        count = Timetable(self.table).fire(now, operation.limit, put)
        self.counted["FIRED"] += count
        return count

    def _time_out(self, row: JobRow, now: int) -> None:
        self.counted["TIMED_OUT"] += 1
        self._change(row, rules.end_attempt(row, now, self.settings, "timeout"), now)

    def _expire(self, row: JobRow) -> None:
        self.counted["EXPIRED"] += 1
        self.table.remove(row)

    def _change(self, row: JobRow, change: RowChange, now: int) -> None:
        """Write what a rule decided: the dead letter before its row goes, so that nothing is ever in neither place."""
        if change.dead is not None:
            self.table.bury(change.dead)
            if self.settings.keep_done_ms:
                self.table.keep_ended(rules.ended(row, now, change.dead), self.settings.max_done)
            self.table.drop_dead(now - self.settings.dead_letter_ttl_ms, SWEEP)
            self.counted["DEAD"] += 1
        for reason in change.flags:
            dead_entry = None if change.dead is None else change.dead.entry
            self._raise_flag(reason, now, row.key, row.owner, dead_entry)
        self.counted["EXPIRED"] += change.expired
        if change.row is None:
            self.table.remove(row)
        else:
            self.table.save(change.row, row)
        if change.fresh is not None:
            fresh = JobRow(self.table.next_entry(), row.key, row.hash, change.fresh)
            self.table.save(fresh, None)

    def _raise_flag(
        self,
        reason: AttemptReason,
        now: int,
        key: bytes | None,
        owner: str | None = None,
        dead_entry: int | None = None,
    ) -> None:
        open_flag = self.table.flag(reason)
        count, first = (0, now) if open_flag is None else (open_flag.count, open_flag.first_ms)
        flag = Flag(reason, count + 1, first, now, key, owner, dead_entry)
        self.table.put_flag(flag)
        if open_flag is None:
            self.raised.append(flag)
        self.counted[f"FLAG_{reason}"] += 1

    # Questions: what could be claimed and in which order, what is due and when. They change nothing.

    def _order(self, now: int, *, swept: bool = False) -> ClaimOrder:
        """What may start. `swept`: that was done already, else the claim to come begins with it."""
        return ClaimOrder(self.table, self.settings, now, unswept=0 if swept else self._sweep_limit)

    def _get(self, operation: Get, now: int) -> list[JobRow]:
        """The rows of a key as they are to be seen, unless they have expired."""
        rows = self.table.find(operation.hash, operation.key)
        seen = (self._seen(row, now) if rules.is_overdue(row, now) else row for row in rows)
        return [row for row in seen if row is not None and not rules.is_expired(row.image, now)]

    def _peek(self, operation: Peek, now: int) -> list[JobRow]:
        """What waits. What is overdue waits, too, as it will once it is swept."""
        after, limit = operation.after, operation.limit
        late = (self._seen(row, now) for row in self.table.each_overdue(now, MAX_OVERDUE_SEEN))
        overdue = (row for row in late if row is not None and (after is None or row.order > after))
        rows = chain(self.table.page(after, now, limit), overdue)
        return heapq.nsmallest(limit, rows, key=lambda row: row.order)

    def _seen(self, overdue: JobRow, now: int) -> JobRow | None:
        return rules.as_waiting(overdue, now, self.settings)

    def _leases(self, operation: ListLeases, now: int) -> list[JobRow]:
        return list(self.table.running(now, operation.limit))

    def _dead_letters(self, operation: ListDead, now: int) -> QueueAnswer:
        oldest = now - self.settings.dead_letter_ttl_ms
        letters = self.table.dead_letters(operation.before, operation.limit)
        return [letter for letter in letters if letter.dead_ms > oldest]

    def _history(self, operation: ListHistory, now: int) -> list[EndedRow]:
        key = None if operation.key is None or operation.hash is None else (operation.hash, operation.key)
        oldest = now - self.settings.keep_done_ms
        found = self.table.history(operation.before, key, operation.limit)
        return [row for row in found if row.ended_ms > oldest]

    def _find_job(self, operation: FindJob, now: int) -> FoundJob:
        return find_job(self.table, self.settings, operation.entry, now, unswept=self._sweep_limit)

    def _flags(self, operation: ListFlags, now: int) -> list[Flag]:
        return list(self.table.flags())

    def _stats(self, operation: AskStats, now: int) -> Stats:
        ready, delayed, running, oldest = self.table.counts(now)
        return Stats(ready, delayed, running, self.table.count_dead(), self.table.paused(), oldest)

    def _due(self, operation: AskDue, now: int) -> DueAnswer:
        """What listeners are to be woken for. A limit that blocks everything, or a group, also says when it ends."""
        times = self.table.times(now)
        moments = [
            times.process_ms,
            None if times.deadline_ms is None else times.deadline_ms + 1,
            None if times.expires_s is None else times.expires_s * 1000 + 1,
        ]
        rate = self.settings.rate_limit
        if rate is not None:
            starts = self.table.starts(now - rate.window_ms)
            if len(starts) >= rate.count:
                moments.append(starts[len(starts) - rate.count] + rate.window_ms)
        due = 0
        if not self.table.paused():
            order = self._order(now)
            limit = min(operation.limit, order.room())
            due = len(order.first(limit))
            if due < limit:
                due += order.take_overdue(self.table.overdue(now, max(limit, self._sweep_limit)), limit - due)
            moments += map(order.window_ends, order.blocked)
        future = [moment for moment in moments if moment is not None and moment > now]
        return DueAnswer(due, min(future, default=None))

    def _schedules(self, operation: ListSchedules, now: int) -> list[ScheduleRow]:
        return list(self.table.schedules())

    def _next_time(self, operation: AskSchedules, now: int) -> int | None:
        return Timetable(self.table).wait_ms(now)

    def _head(self, operation: AskHead, now: int) -> JobPlace | None:
        """What a claim would begin with. An overdue row counts: the claim would turn it over first."""
        order = self._order(now)
        if self.table.paused() or not order.room():
            return None
        overdue = [row for row in self.table.overdue(now, 1) if order.room_of(row.image.group)]
        rows = [*overdue, *order.first(1, fast_only=operation.fast_only)]
        return min((row.order for row in rows), default=None)


_ACTIONS: dict[type[Any], Callable[[Engine, Any, int], Any]] = {
    Put: Engine._put,
    Claim: Engine._claim,
    Heartbeat: Engine._heartbeat,
    Done: Engine._done,
    Fail: Engine._fail,
    Release: Engine._release,
    Cancel: Engine._cancel,
    Pause: Engine._pause,
    Revive: Engine._revive,
    Forget: Engine._forget,
    AckFlag: Engine._ack_flag,
    RaiseFlag: Engine._raise,
    Sweep: Engine._sweep,
    PurgeJobs: Engine._purge,
    SetSchedule: Engine._set_schedule,
    PauseSchedule: Engine._pause_schedule,
    RemoveSchedule: Engine._remove_schedule,
    FireSchedules: Engine._fire,
    Get: Engine._get,
    Peek: Engine._peek,
    ListLeases: Engine._leases,
    ListDead: Engine._dead_letters,
    ListHistory: Engine._history,
    FindJob: Engine._find_job,
    ListFlags: Engine._flags,
    AskStats: Engine._stats,
    AskDue: Engine._due,
    AskHead: Engine._head,
    ListSchedules: Engine._schedules,
    AskSchedules: Engine._next_time,
}

# Operations that often come in large numbers.
_TOGETHER: dict[type[Any], Callable[[Engine, Any, int], list[Any]]] = {Put: Engine._put_all, Done: Engine._done_all}
