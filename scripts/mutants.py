"""Break the rules one by one and expect a failing test for each: `make mutants`.

A mutant is one changed line in a copy of the package. The quick tests of that part run against the copy; if they
still pass, the mutant survives and the rule is not tested. `--list` shows the mutants, a name runs only that one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300

FOLD = "everlog/core/fold.py"
READING = "everlog/journal/reader.py"
WRITING = "everlog/journal/writer.py"
JOURNAL = "everlog/journal/journal.py"
APPENDING = "everlog/log/sqlite/appender.py"
COPYING = "everlog/journal/copy.py"
REMAINS = "everlog/journal/damaged_log.py"
APPLY = "everlog/pipeline/apply.py"
TASK = "everlog/store/sqlite/task.py"
STATEMENTS = "everlog/store/sqlite/statements.sql"
PLAN = "everlog/core/plan.py"
ORDERING = "everlog/pipeline/planner.py"
MERGE = "everlog/tags/view_reader.py"
VIEWS = "everlog/store/sqlite/tag_tables.py"
TAGS = "tags/test_tags.py"
JOURNALS = "journal/test_journal.py"
LOGS = "log/test_log.py"
RETENTION = "journal/test_retention.py"
QUEUE_RULES = "everlog/queues/rules.py"
QUEUE_ENGINE = "everlog/queues/engine.py"
QUEUE_ORDER = "everlog/queues/claim_order.py"
QUEUE_MEMORY = "everlog/queues/memory.py"
QUEUE_OWNER = "everlog/queues/cassandra/owner.py"
QUEUE_LOG = "everlog/queues/cassandra/shard_log.py"
QUEUE_SHARDS = "everlog/queues/shards.py"
REBUILD = "everlog/projections/rebuild.py"
PROCESSING = "everlog/projections/strategy_loops.py"
STREAM = "everlog/projections/event_stream.py"

# The quickest first: pytest stops at the first failure.
TESTS = {
    FOLD: (
        "core/test_fold.py",
        "core/test_fold_tags.py",
        "core/test_reduction.py",
        "core/test_halt.py",
        "pipeline/test_small_scopes.py",
        "journal/test_copy.py",
    ),
    READING: ("journal/test_reader.py", "journal/test_state_machine.py"),
    WRITING: ("journal/test_damaged_log.py", "models/test_found.py", JOURNALS),
    JOURNAL: ("journal/test_retired_topics.py",),
    APPENDING: (LOGS, "sqlite/test_group_commit.py", RETENTION),
    COPYING: ("journal/test_copy.py",),
    REMAINS: ("journal/test_copy.py", "journal/test_retired_topics.py"),
    APPLY: ("pipeline/test_apply.py", "pipeline/test_small_scopes.py", TAGS),
    TASK: ("pipeline/test_apply.py", TAGS, "journal/test_state_machine.py"),
    STATEMENTS: ("pipeline/test_apply.py", "journal/test_reader.py", TAGS, "journal/test_state_machine.py"),
    PLAN: ("core/test_tag_order.py",),
    ORDERING: ("models/test_tag_model.py", "journal/test_retired_topics.py", TAGS),
    MERGE: (TAGS,),
    VIEWS: ("tags/test_writes.py", TAGS),
    QUEUE_RULES: ("queues/test_rules.py", "queues/test_engine.py", "queues/test_stores.py"),
    QUEUE_ENGINE: ("queues/test_engine.py", "queues/test_stores.py"),
    QUEUE_ORDER: ("queues/test_engine.py", "queues/test_stores.py"),
    QUEUE_MEMORY: ("queues/test_engine.py", "queues/test_stores.py"),
    QUEUE_OWNER: ("queues/test_fenced_log.py",),
    QUEUE_LOG: ("queues/test_fenced_log.py",),
    QUEUE_SHARDS: ("queues/test_shards.py",),
    REBUILD: ("projections/test_rebuild.py",),
    PROCESSING: ("projections/test_rebuild.py",),
    STREAM: ("projections/test_rebuild.py",),
}


class Mutant(NamedTuple):
    """One line changed, and the rule that this breaks."""

    name: str
    file: str
    old: str
    new: str
    rule: str


MUTANTS = (
    Mutant(
        "guard",
        FOLD,
        "if offset > self.offset:",
        "if offset >= self.offset:",
        "records at or below the head's offset are skipped",
    ),
    Mutant(
        "judge-tags",
        FOLD,
        "return run.new_head(), run",
        "return run.head, run",
        "a writer's verdict gives the head that the fold gives",
    ),
    Mutant(
        "judge-halted",
        FOLD,
        "        head.halted_at is None\n        and head",
        "        head",
        "nothing is added to a halted journal, also not by its writer's verdict",
    ),
    Mutant(
        "judge-taken-over",
        FOLD,
        "        and head.record_id is not None  # a purged one has none\n",
        "",
        "a taken-over journal may get its life by an append, also in its writer's verdict",
    ),
    Mutant(
        "verdict-between",
        WRITING,
        "if previous is None or previous > known.upto:",
        "if previous is None:",
        "an append is judged alone only if nothing of its journal lies in between",
    ),
    Mutant(
        "growth",
        WRITING,
        "    if ack.offset <= before:\n",
        "    if ack.offset < 0:\n",
        "an append below what was there already does not count",
    ),
    Mutant(
        "retired-at-hand",
        JOURNAL,
        "ref = None if self._retired else self._at_hand(journal_id)",
        "ref = self._at_hand(journal_id)",
        "nothing is appended to a retired topic",
    ),
    Mutant(
        "previous-in-group",
        APPENDING,
        "            last[topic, partition, key] = offset\n",
        "            last.setdefault((topic, partition, key), offset)\n",
        "an acknowledgement names the key's record before it, also of the same group",
    ),
    Mutant(
        "previous-trimmed",
        APPENDING,
        "return self._starts[topic, partition] - 1 if",
        "return -1 if",
        "what was trimmed may have been this key's",
    ),
    Mutant(
        "fork",
        FOLD,
        "    if first <= seq_nr:\n",
        "    if first < seq_nr:\n",
        "an append that does not start above the seqNr loses",
    ),
    Mutant(
        "expected-seq-nr",
        FOLD,
        "        if expected.seq_nr != seq_nr:\n",
        "        if expected.seq_nr < seq_nr:\n",
        "an expectation holds exactly",
    ),
    Mutant(
        "expected-of-a-purged-journal",
        FOLD,
        "        if expected.record_id != life_of(head):\n",
        "        if expected.record_id != life_of(head) and head is not None and not head.purged:\n",
        "a purged journal has no life to expect",
    ),
    Mutant(
        "range-ends",
        FOLD,
        "if events[0].seq_nr != first or events[-1].seq_nr != last:",
        "if events[0].seq_nr != first:",
        "events match the range of their append",
    ),
    Mutant(
        "ascending",
        FOLD,
        "any(a.seq_nr >= b.seq_nr for a, b in",
        "any(a.seq_nr > b.seq_nr for a, b in",
        "the events of an append ascend strictly",
    ),
    Mutant(
        "delete-back",
        FOLD,
        "delete_to = max(head.delete_to, min(action.to, seq_nr))",
        "delete_to = min(action.to, seq_nr)",
        "deleteTo never moves back",
    ),
    Mutant(
        "delete-beyond",
        FOLD,
        "delete_to = max(head.delete_to, min(action.to, seq_nr))",
        "delete_to = max(head.delete_to, action.to)",
        "deleteTo never passes the seqNr",
    ),
    Mutant(
        "delete-own-batch",
        FOLD,
        "self.rows = [row for row in self.rows if row.seq_nr > delete_to]",
        "self.rows = list(self.rows)",
        "a delete takes rows of its own batch with it",
    ),
    Mutant(
        "delete-segments",
        FOLD,
        "first=segment_of(head.delete_to + 1, head.segment_size),",
        "first=segment_of(delete_to, head.segment_size),",
        "a delete clears every segment since the last one",
    ),
    Mutant(
        "delete-if-exists",
        FOLD,
        "            if not action.if_exists:\n",
        "            if action.if_exists:\n",
        "ifExists leaves an absent journal absent, a plain delete creates it",
    ),
    Mutant(
        "first-delete-to",
        FOLD,
        "delete_to=action.range.first - 1,",
        "delete_to=0,",
        "a journal that begins at n has deleteTo n-1",
    ),
    Mutant(
        "purge-marker",
        FOLD,
        "                purged=True,\n",
        "                purged=True,\n                seq_nr=head.seq_nr,\n",
        "a purge marker keeps nothing of its life",
    ),
    Mutant(
        "purge-own-batch",
        FOLD,
        "        self.rows = []\n        self.purged_at",
        "        self.purged_at",
        "a purge takes rows of its own batch with it",
    ),
    Mutant(
        "purge-segments",
        FOLD,
        "first=max(0, segment_of(max(min(head.delete_to, head.seq_nr), 1), head.segment_size) - 1),",
        "first=max(0, segment_of(max(head.delete_to, 1), head.segment_size)),",
        "a purge clears one segment more on either side",
    ),
    Mutant(
        "life",
        FOLD,
        "        return action.life or self.topic.life(record.partition, record.offset)\n",
        "        return action.life or self.topic.life(record.partition, 0)\n",
        "every life has its own record_id",
    ),
    Mutant(
        "life-by-place",
        FOLD,
        "        return action.life or self.topic.life(record.partition, record.offset)\n",
        "        return self.topic.life(record.partition, record.offset)\n",
        "a life keeps its name in a mirrored log",
    ),
    Mutant(
        "life-expected",
        FOLD,
        '        if expected.record_id != life_of(head):\n            return "life"\n',
        "",
        "an expectation holds in its own life only",
    ),
    Mutant(
        "life-reused",
        WRITING,
        "life=self._clock.new_id() if expected is None or expected.record_id is None else None,",
        'life="5a0e7c1c-6a52-4d0f-9d0b-3f4f1f7d2c11" if expected is None or expected.record_id is None else None,',
        "a life's name is fresh: the id of an append may come again after a purge",
    ),
    Mutant(
        "recovery-pinned",
        READING,
        "        return head.record_id == self.life and head.delete_to < first\n",
        "        return head.record_id == self.life\n",
        "what was deleted before its events are read overtakes a recovery",
    ),
    Mutant(
        "recovery-one-life",
        READING,
        "        return head.record_id == self.life and head.delete_to < first\n",
        "        return head.delete_to < first\n",
        "a recovery does not mix lives",
    ),
    Mutant(
        "append-id-reused",
        WRITING,
        "        if not _says(draft, first, found):\n            raise AppendIdReused(str(ref), append_id)\n",
        "",
        "other events under the same key are no success",
    ),
    Mutant(
        "outcome-deleted",
        WRITING,
        "        if repeated is not None and _is_gone(known.head, draft.expected, first_of(repeated)):\n",
        "        if False:\n",
        "a repeated append whose place is deleted is not stored again",
    ),
    Mutant(
        "late-record-id",
        FOLD,
        "if head.record_id is None and head.seq_nr == head.delete_to:",
        "if head.record_id is None:",
        "a taken-over head gets a record_id only when it holds no events",
    ),
    Mutant(
        "expiry-date",
        FOLD,
        "head.expire_on <= purge.expire_on",
        "head.expire_on == purge.expire_on",
        "a missed day of expiry is caught up",
    ),
    Mutant(
        "expiry-extended",
        FOLD,
        "if not action.only_expired or has_expired(head, action):",
        "if not action.only_expired or head.expire_on is not None:",
        "an append that extends the life wins over the purge for expiry",
    ),
    Mutant(
        "expiry-early",
        FOLD,
        "return head.expire_at <= purge.expire_at",
        "return head.expire_at // 86_400_000 <= purge.expire_at // 86_400_000",
        "a journal expires at its time, not with the day of it",
    ),
    Mutant(
        "expiry-removed",
        FOLD,
        "expire_after=after,",
        "expire_after=after or head.expire_after,",
        "an append without expireAfter ends the expiry",
    ),
    Mutant(
        "halt",
        FOLD,
        "        elif entry.error is not None:\n            self._halt(entry)\n",
        "        elif entry.error is not None and self.head is not None:\n            self._halt(entry)\n",
        "a record that cannot be decoded halts an absent journal too",
    ),
    Mutant(
        "halted-purge",
        FOLD,
        "            self._release(record.offset, record.offset)\n",
        "            pass\n",
        "a purge ends a halt and empties the quarantine",
    ),
    Mutant(
        "resume-skip",
        FOLD,
        "if action.skip and digest(found.record) in action.skip:",
        "if entry.error is not None and action.skip:",
        "a resume skips what it names and nothing else",
    ),
    Mutant(
        "resume-stuck",
        FOLD,
        "taken = found.record.offset - 1",
        "taken = found.record.offset",
        "a resume that gets stuck leaves the bad record waiting",
    ),
    Mutant(
        "reduce-purge",
        FOLD,
        "            if not action.only_expired:\n                steps.append",
        "            if action.only_expired:\n                steps.append",
        "only an unconditional purge makes older appends needless",
    ),
    Mutant(
        "reduce-delete",
        FOLD,
        "elif covered is None or covered < action.range.last:",
        "elif covered is None or covered < action.range.first:",
        "a partly deleted append survives whole",
    ),
    Mutant(
        "reduce-larger-delete",
        FOLD,
        "if action.to >= following.to:",
        "if action.to < following.to:",
        "of two deletes the larger one counts",
    ),
    Mutant(
        "reduce-halted",
        FOLD,
        "if halted or not removing or not appends:",
        "if not removing or not appends:",
        "around a halt nothing is left out",
    ),
    Mutant(
        "read-deleted",
        READING,
        "first, last = max(span.first, state.delete_to + 1), min(span.last, stored.seq_nr)",
        "first, last = max(span.first, stored.delete_to + 1), min(span.last, stored.seq_nr)",
        "a delete in the tail hides stored rows",
    ),
    Mutant(
        "read-stored-bound",
        READING,
        "first, last = max(span.first, state.delete_to + 1), min(span.last, stored.seq_nr)",
        "first, last = max(span.first, state.delete_to + 1), span.last",
        "rows are read only up to the stored head's seqNr",
    ),
    Mutant(
        "read-purged",
        READING,
        "if stored is None or stored.purged or view.purged_at is not None:",
        "if stored is None or stored.purged:",
        "a purge in the tail hides stored rows",
    ),
    Mutant(
        "read-recheck",
        READING,
        "return (head.record_id, head.purged, head.delete_to, head.halted_at if waited else None)",
        "return (head.record_id, head.purged, head.halted_at if waited else None)",
        "a read is checked against deletes that overtook it",
    ),
    Mutant(
        "read-recheck-life",
        READING,
        "return (head.record_id, head.purged, head.delete_to, head.halted_at if waited else None)",
        "return (head.delete_to, head.halted_at if waited else None)",
        "a read is checked against purges that overtook it",
    ),
    Mutant(
        "read-tail-purged",
        READING,
        "if first <= row.seq_nr <= last and row.offset > oldest]",
        "if first <= row.seq_nr <= last]",
        "events of the tail before its purge are gone",
    ),
    Mutant(
        "read-correlate",
        READING,
        "return [row for row in rows if row.record_id == stored.record_id]",
        "return rows",
        "rows of another life are dropped",
    ),
    Mutant(
        "read-next-life",
        READING,
        "if any(row.offset > stored.offset and row.partition == stored.partition for row in strays):",
        "if not strays:",
        "rows of the next life, whose head is yet to come, start a read over",
    ),
    Mutant(
        "read-truncated",
        READING,
        "if bounds.start > pointer + 1:\n        raise LogTruncated(",
        "if bounds.start > bounds.end:\n        raise LogTruncated(",
        "a log that lost records is never an empty tail",
    ),
    Mutant(
        "apply-garbage",
        APPLY,
        "left: tuple[Deletion, ...] = head.garbage if head is not None and head.offset > pointer else ()",
        "left: tuple[Deletion, ...] = ()",
        "deletions of an unpublished batch are repeated",
    ),
    Mutant(
        "apply-partition",
        APPLY,
        "return None if right == partition else",
        "return None if right <= topic.partitions else",
        "a record in the wrong partition touches no journal",
    ),
    Mutant(
        "apply-failed",
        APPLY,
        "changes = [key for key in changes if key.id not in failed]",
        "changes = list(changes)",
        "a journal that failed is left out of what follows",
    ),
    Mutant(
        "task-delete-bound",
        TASK,
        "to = MAX_SEQ_NR if deletion.to is None else deletion.to",
        "to = MAX_SEQ_NR",
        "a delete removes rows up to its seqNr only",
    ),
    Mutant(
        "task-snapshots",
        TASK,
        "        if deletion.purge:\n",
        "        if deletion.purge and deletion.record_id is None:\n",
        "a purge removes the snapshots of its life",
    ),
    Mutant(
        "task-quarantine",
        TASK,
        "        if deletion.quarantine is not None:\n",
        "        if deletion.quarantine is None:\n",
        "what a resume took up waits no longer",
    ),
    Mutant(
        "store-snapshots-of-a-life",
        STATEMENTS,
        "DELETE FROM snapshot_buffer WHERE id = ? AND topic = ? AND record_id IS ?",
        "DELETE FROM snapshot_buffer WHERE id = ? AND topic = ? AND ? IS NOT NULL",
        "a purge leaves the snapshots of the next life alone",
    ),
    Mutant(
        "store-head-forward",
        STATEMENTS,
        "expire_at = excluded.expire_at\nWHERE offset < excluded.offset",
        "expire_at = excluded.expire_at",
        "a head is never replaced by an older one",
    ),
    Mutant(
        "store-pointer-forward",
        STATEMENTS,
        "updated = excluded.updated WHERE offset < excluded.offset\n\n-- name: head",
        "updated = excluded.updated\n\n-- name: head",
        "a pointer never moves back",
    ),
    Mutant(
        "store-newer-rows",
        STATEMENTS,
        "DELETE FROM journal WHERE id = ? AND topic = ? AND segment BETWEEN ? AND ? AND seq_nr <= ? AND offset < ?",
        "DELETE FROM journal WHERE id = ? AND topic = ? AND segment BETWEEN ? AND ? AND seq_nr <= ? AND ? >= 0",
        "a deletion touches nothing newer than itself",
    ),
    Mutant(
        "plan-apart",
        PLAN,
        "tick = now_tick if previous is None else max(now_tick, previous.tick + previous.longest + 1)",
        "tick = now_tick",
        "plans do not overlap, whatever the clock says",
    ),
    Mutant(
        "plan-covered",
        PLAN,
        "pointers.get(place, -1) >= end - 1 or",
        "pointers.get(place, -1) >= end - 2 or",
        "the watermark waits for the last offset of a plan",
    ),
    Mutant(
        "plan-by-offset",
        PLAN,
        "tick = share.tick + position - share.first",
        "tick = share.tick",
        "every offset has a tick of its own",
    ),
    Mutant(
        "order-covered",
        ORDERING,
        "self._covered |= ends_of(plans)",
        "self._covered |= {}",
        "a plan goes on where the last one ended",
    ),
    Mutant(
        "order-number",
        ORDERING,
        "if topic in numbers:",
        "if False:",
        "a topic keeps its number",
    ),
    Mutant(
        "tags-outlive-purges",
        FOLD,
        "tag_seq = self.numbers or (None if self.before is None else self.before.tag_seq)",
        "tag_seq = self.numbers",
        "the numbers of tags outlive purges and deletes",
    ),
    Mutant(
        "tags-resume",
        FOLD,
        "TaggedEntry(row, self.position, index, numbers)",
        "TaggedEntry(row, record.offset, index, numbers)",
        "what waited takes its place where it is taken up",
    ),
    Mutant(
        "tags-folded-away",
        FOLD,
        "if not kept and not numbers:",
        "if not kept:",
        "a view keeps what the same batch deletes",
    ),
    Mutant(
        "tags-propagate",
        APPLY,
        "kept = {id(row) for row in change.rows} if key.propagate else None",
        "kept = None",
        "where deletes propagate, what the batch itself deletes gets into no view",
    ),
    Mutant(
        "tags-clean-first",
        TASK,
        "            if key.propagate:\n",
        "            if False:\n",
        "rows leave the views before a row of a new life takes the place that leads to them",
    ),
    Mutant(
        "tags-watermark",
        STATEMENTS,
        "WHERE nr < excluded.nr",
        "WHERE true",
        "the watermark never moves back",
    ),
    Mutant(
        "tags-buckets",
        VIEWS,
        "buckets = {(entry.tag, entry.bucket) for entry in entries}",
        "buckets = {(entry.tag, entry.bucket) for entry in entries[:1]}",
        "every bucket is in the index",
    ),
    Mutant(
        "tags-merge",
        MERGE,
        "limits = [opened[0][0]] if opened else []",
        "limits = []",
        "buckets that overlap are merged",
    ),
    Mutant(
        "queue-expired-successor",
        QUEUE_RULES,
        "    if row.slot is not None and is_expired(row.slot, now):\n",
        "    if row.slot is not None and False:\n",
        "a successor that has expired is dropped",
    ),
    Mutant(
        "queue-expired-successor-merged",
        QUEUE_RULES,
        "free = row.slot is None or is_expired(row.slot, now)",
        "free = row.slot is None",
        "an arrival does not merge with a successor that has expired",
    ),
    Mutant(
        "queue-token",
        QUEUE_RULES,
        "return row is not None and row.status == PROCESSING and row.token == token",
        "return row is not None and row.status == PROCESSING",
        "an old handle changes nothing",
    ),
    Mutant(
        "queue-overdue-strict",
        QUEUE_RULES,
        "return row.status == PROCESSING and now > row.deadline_ms",
        "return row.status == PROCESSING and now >= row.deadline_ms",
        "a lease ends strictly after its last moment",
    ),
    Mutant(
        "queue-never-expires",
        QUEUE_RULES,
        "expires_s=max(held.expires_s, incoming.expires_s) if held.expires_s and incoming.expires_s else 0,",
        "expires_s=max(held.expires_s, incoming.expires_s),",
        "never is later than every expiration",
    ),
    Mutant(
        "queue-rate-window",
        QUEUE_ORDER,
        "room = min(room, rate.count - len(self._table.starts(self._now - rate.window_ms)))",
        "room = min(room, rate.count - len(self._table.starts(self._now - rate.window_ms + 1)))",
        "the window of a rate limit is exact to the millisecond",
    ),
    Mutant(
        "queue-rate-window-long",
        QUEUE_MEMORY,
        "return self._starts[bisect_right(self._starts, since) :]",
        "return self._starts[bisect_right(self._starts, since - 1) :]",
        "a start is possible a window after the first one, not later",
    ),
    Mutant(
        "queue-rate-forgotten",
        QUEUE_ORDER,
        "        if rate is not None:\n            self._table.add_starts(",
        "        if len(rows) > 1 and rate is not None:\n            self._table.add_starts(",
        "every start counts",
    ),
    Mutant(
        "queue-rate-wake",
        QUEUE_ENGINE,
        "moments.append(starts[len(starts) - rate.count] + rate.window_ms)",
        "moments.append(starts[-1] + rate.window_ms)",
        "listeners are woken when the limit lets the first one in",
    ),
    Mutant(
        "queue-turn",
        QUEUE_ORDER,
        "        self._turns[group] = self._next_turn\n",
        "",
        "within a claim, a group that was chosen comes last",
    ),
    Mutant(
        "queue-turn-kept",
        QUEUE_ORDER,
        "self._table.add_turns(list(reversed(dict.fromkeys(reversed(groups)))))",
        "self._table.add_turns(groups[:1])",
        "every start is a turn, from one claim to the next",
    ),
    Mutant(
        "queue-group-room",
        QUEUE_ORDER,
        "        self._rooms[group] -= 1\n",
        "",
        "what is chosen takes room in its group",
    ),
    Mutant(
        "queue-group-overdue",
        QUEUE_ORDER,
        "self._table.overdue(self._now, self._unswept) if self._unswept else ()",
        "self._table.overdue(self._now, 1000)",
        "an overdue lease counts for its group until it is swept",
    ),
    Mutant(
        "queue-group-window",
        QUEUE_ORDER,
        "rate.count - len(self._table.group_starts(group, self._now - rate.window_ms))",
        "rate.count - len(self._table.group_starts(group, self._now - rate.window_ms + 1))",
        "the window of a group is exact to the millisecond",
    ),
    Mutant(
        "queue-group-wake",
        QUEUE_ENGINE,
        "            moments += map(order.window_ends, order.blocked)\n",
        "",
        "listeners are told when the window of a group ends",
    ),
    Mutant(
        "queue-group-takeover",
        QUEUE_OWNER,
        '{"": rate.count}',
        '{"": 0}',
        "a new owner does not know what groups have started, so their windows are full",
    ),
    Mutant(
        "queue-rate-takeover",
        QUEUE_OWNER,
        "            table.add_starts(now, rate.count, now - rate.window_ms)\n",
        "            table.add_starts(now, 0, now - rate.window_ms)\n",
        "a new owner does not know what was started, so the window is full",
    ),
    Mutant(
        "queue-fence",
        QUEUE_LOG,
        "            if now.fence != mine.epoch:\n                self._lose()\n",
        "            if now.fence != mine.epoch:\n                break\n",
        "who is deposed acknowledges nothing",
    ),
    Mutant(
        "queue-shard-of-an-entry",
        QUEUE_SHARDS,
        "return last + 1 + (self.index - last - 1) % self.count",
        "return last + 1",
        "an entry says in which shard it is",
    ),
    Mutant(
        "rebuild-keys",
        REBUILD,
        'one.report.state != "new" and len(new) >= one.report.keys for one in new',
        'one.report.state != "new" for one in new',
        "a copy is filled only when every key of its source is known",
    ),
    Mutant(
        "rebuild-unsaid",
        REBUILD,
        'one.report.state != "new" and len(new) >= one.report.keys for one in new',
        "len(new) >= one.report.keys for one in new",
        "a key that has said nothing yet does not know how many there are",
    ),
    Mutant(
        "view-changed-is-failure",
        PROCESSING,
        "                except (OwnershipLost, ViewChanged):\n",
        "                except OwnershipLost:\n",
        "an envelope whose view others changed has not failed",
    ),
    Mutant(
        "view-changed-is-attempt",
        PROCESSING,
        "        except (OwnershipLost, ViewChanged):\n            raise\n        except Exception as again:",
        "        except OwnershipLost:\n            raise\n        except Exception as again:",
        "what others changed during a recovery is no attempt of it",
    ),
    Mutant(
        "view-changed-for-ever",
        PROCESSING,
        "if changes > MAX_CHANGES:",
        "if changes > 100 * MAX_CHANGES:",
        "a reader that cannot get on says so",
    ),
    Mutant(
        "view-changed-replay",
        STREAM,
        "            except ViewChanged:\n                continue  # others got on meanwhile\n",
        "            except ViewChanged:\n                pass\n",
        "a dead letter whose view others changed is handled again",
    ),
    Mutant(
        "queue-batch-rows",
        QUEUE_OWNER,
        "if len(self.table.changed) >= BATCH_ROWS:",
        "if len(self.table.changed) >= 100 * BATCH_ROWS:",
        "an append has no more records than a store takes",
    ),
    Mutant(
        "queue-batch-bytes",
        QUEUE_OWNER,
        "INLINE_BYTES if size < BATCH_BYTES else 0",
        "INLINE_BYTES",
        "an append has no more bytes than a store takes",
    ),
    Mutant(
        "copy-delete-mark",
        COPYING,
        "if found.target is None and found.delete_to > 0:",
        "if False:",
        "a copy begins behind the events that the original has lost",
    ),
    Mutant(
        "copy-tags",
        COPYING,
        "tuple(sorted(event.tags)), event.payload_type",
        "(), event.payload_type",
        "a copied event keeps its tags",
    ),
    Mutant(
        "copy-expectation",
        COPYING,
        "        expected=expected,\n",
        "        expected=None,\n",
        "a copy loses where another writer appends",
    ),
    Mutant(
        "copy-comparison",
        COPYING,
        " or _content(one) != _content(two)",
        "",
        "what stands in the way of a copy is not taken for its beginning",
    ),
    Mutant(
        "copy-life",
        FOLD,
        "            record_id=life,\n        )",
        "            record_id=None,\n        )",
        "a copy without events has a life, and so keeps its snapshots",
    ),
    Mutant(
        "copy-begins",
        FOLD,
        "        if action.copied is not None:  # another writer",
        "        if False:  # another writer",
        "the beginning of a copy deletes nothing from a journal that exists",
    ),
    Mutant(
        "copy-reduced",
        FOLD,
        " and action.copied is None and",
        " and",
        "the beginning of a copy removes no rows of its batch",
    ),
    Mutant(
        "life-reduced",
        FOLD,
        " and action.only_life is None:",
        ":",
        "a delete that may not count removes no rows of its batch",
    ),
    Mutant(
        "delete-life",
        FOLD,
        "if action.only_life is not None and action.only_life != life_of(head):",
        "if False:",
        "a delete counts in the life that it names",
    ),
    Mutant(
        "retired-watermark",
        ORDERING,
        "advance(self._watermark, oldest, pointers, self._retired)",
        "advance(self._watermark, oldest, pointers)",
        "the watermark does not wait for retired topics",
    ),
    Mutant(
        "remains-behind",
        REMAINS,
        "if self.replaced or gap.startswith(_BEHIND)",
        "if self.replaced",
        "nothing is read of a log that ends below the pointer",
    ),
)


class Outcome(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    verdict: str
    killer: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.verdict == "killed"


def copy_checkout(folder: Path) -> None:
    """The package and its tests, without what running them left behind."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("everlog", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, names: tuple[str, ...]) -> tuple[str, str]:
    """What pytest says about the copy: passed, killed or broken, and the test that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    command += [f"tests/{name}" for name in names]
    # The folder comes first, so that the copy is imported and not the checkout.
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "unshrunk",
    }
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "killed", "(it never ended)"
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if done.returncode == 0:
        return "passed", ""
    if done.returncode == 1 and failed:
        return "killed", failed[0].removeprefix("FAILED tests/")
    return "broken", (done.stdout + done.stderr).strip()[-2000:]


def try_mutant(mutant: Mutant) -> Outcome:
    """Apply one change to a fresh copy and run the tests of its part."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="everlog-mutant-") as name:
        folder = Path(name)
        copy_checkout(folder)
        target = folder / mutant.file
        text = target.read_text()
        if text.count(mutant.old) != 1:
            return Outcome(mutant, "not found", f"its line stands {text.count(mutant.old)} times in the file", 0.0)
        target.write_text(text.replace(mutant.old, mutant.new))
        verdict, killer = run_tests(folder, TESTS[mutant.file])
    verdict = "SURVIVED" if verdict == "passed" else verdict
    return Outcome(mutant, verdict, killer, time.monotonic() - started)


def try_unchanged() -> Outcome:
    """The tests must pass without a change, or a failure would mean nothing."""
    nothing = Mutant("(unchanged)", "", "", "", "all tests pass on an unchanged copy")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="everlog-mutant-") as name:
        copy_checkout(Path(name))
        every = tuple(dict.fromkeys(test for tests in TESTS.values() for test in tests))
        verdict, killer = run_tests(Path(name), every)
    return Outcome(nothing, verdict, killer, time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the rules one by one and expect a failing test for each.")
    parser.add_argument("names", nargs="*", help="mutants to try; all of them by default")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="how many at a time")
    parser.add_argument("--list", action="store_true", help="show the mutants and try none")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    unknown = set(arguments.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        console.print(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not arguments.names or mutant.name in arguments.names]
    if arguments.list:
        for mutant in chosen:
            console.print(f"{mutant.name:30} {mutant.rule}")
        return 0
    unchanged = try_unchanged()
    console.print(f"unchanged: {unchanged.verdict} in {unchanged.seconds:.0f} s {unchanged.killer}")
    if unchanged.verdict != "passed":
        return 1
    outcomes = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for outcome in pool.map(try_mutant, chosen):
            console.print(f"{outcome.verdict:10} {outcome.mutant.name} ({outcome.seconds:.0f} s)", highlight=False)
            outcomes.append(outcome)
    table = Table("mutant", "rule", "verdict", "by", title="Mutants")
    for outcome in outcomes:
        table.add_row(outcome.mutant.name, outcome.mutant.rule, outcome.verdict, outcome.killer)
    console.print(table)
    left = [outcome.mutant.name for outcome in outcomes if not outcome.killed]
    console.print(
        f"{len(outcomes) - len(left)} of {len(outcomes)} killed" + (f"; left: {', '.join(left)}" if left else "")
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
