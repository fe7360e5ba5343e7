-- name: queues
SELECT jid, name, declaration, paused FROM everlog_queue ORDER BY name

-- name: insert_queue
INSERT INTO everlog_queue (name, declaration) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: update_queue
UPDATE everlog_queue SET declaration = ? WHERE jid = ?

-- name: note_deleted
INSERT INTO everlog_queue_deleted (jid, name, declaration, jobs)
SELECT jid, name, declaration, ? FROM everlog_queue WHERE jid = ?

-- name: delete_queue
DELETE FROM everlog_queue WHERE jid = ?

-- name: delete_dead
DELETE FROM everlog_queue_dead WHERE jid = ?

-- name: delete_flags
DELETE FROM everlog_queue_flag WHERE jid = ?

-- name: delete_starts
DELETE FROM everlog_queue_start WHERE jid = ?

-- name: delete_group_starts
DELETE FROM everlog_queue_group_start WHERE jid = ?

-- name: delete_turns
DELETE FROM everlog_queue_turn WHERE jid = ?

-- name: delete_totals
DELETE FROM everlog_queue_total WHERE jid = ?

-- name: delete_ended
DELETE FROM everlog_queue_ended WHERE jid = ?

-- name: delete_schedules
DELETE FROM everlog_queue_schedule WHERE jid = ?

-- name: deleted
SELECT jid, name, declaration, jobs FROM everlog_queue_deleted ORDER BY jid

-- name: forget_deleted
DELETE FROM everlog_queue_deleted WHERE jid = ?

-- name: pause
UPDATE everlog_queue SET paused = ? WHERE jid = ?

-- name: next_entries
SELECT next FROM everlog_queue_counter WHERE one = 1

-- name: reserve
UPDATE everlog_queue_counter SET next = next + ? WHERE one = 1

-- name: buckets
SELECT seq, space, file, kind, period_ms, version FROM everlog_queue_bucket WHERE state = 'live' ORDER BY seq

-- name: file_taken
SELECT 1 FROM everlog_queue_bucket WHERE file = ?

-- name: is_live
SELECT 1 FROM everlog_queue_bucket WHERE seq = ? AND state = 'live'

-- name: insert_bucket
INSERT INTO everlog_queue_bucket (space, file, kind, period_ms, version) VALUES (?, ?, ?, ?, ?)

-- name: retire_bucket
UPDATE everlog_queue_bucket SET state = 'retired' WHERE seq = ?

-- name: retire_space
UPDATE everlog_queue_bucket SET state = 'retired' WHERE space = ?

-- name: forget_space
DELETE FROM everlog_queue_bucket WHERE space = ?

-- name: retired_buckets
SELECT seq, space, file, kind, period_ms, version FROM everlog_queue_bucket
WHERE space = ? AND state = 'retired' ORDER BY seq DESC

-- name: forget_bucket
DELETE FROM everlog_queue_bucket WHERE seq = ? AND state = 'retired'

-- name: bury
INSERT INTO everlog_queue_dead (jid, entry, dead_ms, letter) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: dead
SELECT letter FROM everlog_queue_dead WHERE jid = ? AND entry = ?

-- name: unbury
DELETE FROM everlog_queue_dead WHERE jid = ? AND entry = ?

-- name: dead_letters
SELECT letter FROM everlog_queue_dead WHERE jid = ? AND (dead_ms, entry) < (?, ?) ORDER BY dead_ms DESC, entry DESC LIMIT ?

-- name: old_dead
SELECT entry FROM everlog_queue_dead WHERE jid = ? AND dead_ms <= ? LIMIT ?

-- name: count_dead
SELECT count(*) FROM everlog_queue_dead WHERE jid = ?

-- name: last_ended
SELECT coalesce(max(number), 0) FROM everlog_queue_ended WHERE jid = ?

-- name: keep_ended
INSERT INTO everlog_queue_ended (jid, number, ended_ms, entry, token, kh, ended) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: limit_ended
DELETE FROM everlog_queue_ended WHERE jid = ? AND number <= ?

-- name: history
SELECT ended FROM everlog_queue_ended INDEXED BY everlog_queue_ended_age
WHERE jid = ? AND (ended_ms, entry, token) < (?, ?, ?) ORDER BY ended_ms DESC, entry DESC, token DESC LIMIT ?

-- name: history_of_key
SELECT ended FROM everlog_queue_ended INDEXED BY everlog_queue_ended_key
WHERE jid = ? AND kh = ? AND (ended_ms, entry, token) < (?, ?, ?) ORDER BY ended_ms DESC, entry DESC, token DESC

-- name: ended_of
SELECT ended FROM everlog_queue_ended INDEXED BY everlog_queue_ended_age
WHERE jid = ? AND entry = ? ORDER BY ended_ms DESC, token DESC LIMIT ?

-- name: old_ended
SELECT number FROM everlog_queue_ended INDEXED BY everlog_queue_ended_age WHERE jid = ? AND ended_ms <= ? LIMIT ?

-- name: drop_ended
DELETE FROM everlog_queue_ended WHERE jid = ? AND number = ?

-- name: flag
SELECT flag FROM everlog_queue_flag WHERE jid = ? AND reason = ?

-- name: put_flag
INSERT OR REPLACE INTO everlog_queue_flag (jid, reason, flag) VALUES (?, ?, ?)

-- name: drop_flag
DELETE FROM everlog_queue_flag WHERE jid = ? AND reason = ?

-- name: flags
SELECT flag FROM everlog_queue_flag WHERE jid = ? ORDER BY reason

-- name: starts
SELECT at_ms, count FROM everlog_queue_start WHERE jid = ? AND at_ms > ? ORDER BY at_ms

-- name: forget_starts
DELETE FROM everlog_queue_start WHERE jid = ? AND at_ms <= ?

-- name: add_starts
INSERT INTO everlog_queue_start (jid, at_ms, count) VALUES (?, ?, ?)
ON CONFLICT (jid, at_ms) DO UPDATE SET count = count + excluded.count

-- name: group_starts
SELECT at_ms, count FROM everlog_queue_group_start WHERE jid = ? AND grp = ? AND at_ms > ? ORDER BY at_ms

-- name: forget_group_starts
DELETE FROM everlog_queue_group_start WHERE jid = ? AND at_ms <= ?

-- name: add_group_starts
INSERT INTO everlog_queue_group_start (jid, grp, at_ms, count) VALUES (?, ?, ?, ?)
ON CONFLICT (jid, grp, at_ms) DO UPDATE SET count = count + excluded.count

-- name: turns
SELECT turn.grp, turn.turn FROM json_each(?) AS wanted CROSS JOIN everlog_queue_turn AS turn
WHERE turn.jid = ? AND turn.grp = wanted.value

-- name: last_turn
SELECT coalesce(max(turn), 0) FROM everlog_queue_turn WHERE jid = ?

-- name: add_turn
INSERT OR REPLACE INTO everlog_queue_turn (jid, grp, turn) VALUES (?, ?, ?)

-- name: forget_turns
DELETE FROM everlog_queue_turn WHERE jid = ?1 AND turn <= (
    SELECT turn FROM everlog_queue_turn WHERE jid = ?1 ORDER BY turn DESC LIMIT 1 OFFSET ?2
)

-- name: schedules
SELECT name, schedule, done_ms, fired_ms FROM everlog_queue_schedule WHERE jid = ? ORDER BY name

-- name: has_schedules
SELECT 1 FROM everlog_queue_schedule WHERE jid = ? LIMIT 1

-- name: put_schedule
INSERT OR REPLACE INTO everlog_queue_schedule (jid, name, schedule, done_ms, fired_ms) VALUES (?, ?, ?, ?, ?)

-- name: drop_schedule
DELETE FROM everlog_queue_schedule WHERE jid = ? AND name = ?

-- name: take_over_mark
UPDATE everlog_queue_schedule SET done_ms = ?, fired_ms = ? WHERE jid = ? AND name = ? AND done_ms < ?

-- name: totals
SELECT kind, number FROM everlog_queue_total WHERE jid = ?

-- name: add_totals
INSERT INTO everlog_queue_total (jid, kind, number) SELECT jid, ?, ? FROM everlog_queue WHERE jid = ?
ON CONFLICT (jid, kind) DO UPDATE SET number = number + excluded.number
