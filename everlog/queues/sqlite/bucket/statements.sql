-- name: find
SELECT {columns} FROM everlog_queue_item INDEXED BY everlog_queue_key WHERE jid = ? AND kh = ? ORDER BY id

-- name: get
SELECT {columns} FROM everlog_queue_item WHERE id = ? AND jid = ?

-- name: insert
INSERT INTO everlog_queue_item ({names}) VALUES ({marks})

-- name: update_all
UPDATE everlog_queue_item SET priority = ?, process_ms = ?, inserted_ms = ?, expires_s = ?, data_date = ?, schema_v = ?,
    status = ?, claimed_ms = ?, start_ms = ?, lease_ms = ?, deadline_ms = ?, timeouts = ?, lifetime = ?, token = ?,
    owner = ?, stop = ?, stop_reason = ?, attempts = ?, slot = ?, data = ?, kind = ?, grp = ?
WHERE id = ?

-- name: update_state
UPDATE everlog_queue_item SET status = ?, claimed_ms = ?, start_ms = ?, lease_ms = ?, deadline_ms = ?, timeouts = ?,
    lifetime = ?, token = ?, owner = ?, stop = ?, stop_reason = ?
WHERE id = ?

-- name: delete
DELETE FROM everlog_queue_item WHERE id = ?

-- name: end
DELETE FROM everlog_queue_item WHERE id = ? AND jid = ? AND token = ? AND status = 'P' AND slot IS NULL

-- name: end_all
DELETE FROM everlog_queue_item NOT INDEXED
WHERE id IN (SELECT value FROM json_each(?)) AND jid = ? AND token = ? AND status = 'P' AND slot IS NULL RETURNING id

-- name: find_all
SELECT {columns} FROM everlog_queue_item INDEXED BY everlog_queue_key WHERE jid = ? AND kh IN ({hashes})

-- name: next_priority
SELECT min(priority) FROM {waiting} AND priority > ?

-- name: due
SELECT {columns} FROM {waiting} AND priority = ? AND process_ms <= ? AND (expires_s = 0 OR expires_s * 1000 >= ?)
ORDER BY process_ms, kh, id LIMIT ?

-- name: due_of_group
SELECT {columns} FROM everlog_queue_item INDEXED BY everlog_queue_group
WHERE jid = ? AND status = 'W' AND grp <> '' AND priority = ? AND process_ms <= ?
    AND (expires_s = 0 OR expires_s * 1000 >= ?) AND grp = ?
ORDER BY process_ms, kh, id LIMIT ?

-- name: groups_wait
SELECT 1 FROM everlog_queue_item INDEXED BY everlog_queue_grouped WHERE jid = ? AND status = 'W' AND grp <> '' LIMIT 1

-- name: some_grouped
SELECT grp, process_ms, kh, id FROM everlog_queue_item INDEXED BY everlog_queue_grouped
WHERE jid = ? AND status = 'W' AND grp <> '' AND priority = ? AND process_ms <= ?
    AND (expires_s = 0 OR expires_s * 1000 >= ?)
ORDER BY process_ms, kh, id LIMIT ?

-- name: heads
WITH RECURSIVE waiting (grp) AS (
    SELECT min(grp) FROM everlog_queue_item INDEXED BY everlog_queue_group
    WHERE jid = ?1 AND status = 'W' AND grp <> '' AND priority = ?2
    UNION ALL
    SELECT (
        SELECT min(item.grp) FROM everlog_queue_item AS item INDEXED BY everlog_queue_group
        WHERE item.jid = ?1 AND item.status = 'W' AND item.grp <> '' AND item.priority = ?2 AND item.grp > waiting.grp
    ) FROM waiting WHERE waiting.grp IS NOT NULL
)
SELECT head.grp, head.process_ms, head.kh, head.id FROM waiting CROSS JOIN everlog_queue_item AS head ON head.id = (
    SELECT item.id FROM everlog_queue_item AS item INDEXED BY everlog_queue_group
    WHERE item.jid = ?1 AND item.status = 'W' AND item.grp <> '' AND item.priority = ?2 AND item.grp = waiting.grp
        AND item.process_ms <= ?3 AND (item.expires_s = 0 OR item.expires_s * 1000 >= ?3)
    ORDER BY item.process_ms, item.kh, item.id LIMIT 1
)

-- name: group_leases
SELECT count(*) FROM everlog_queue_item INDEXED BY everlog_queue_group_lease
WHERE jid = ? AND status = 'P' AND grp <> '' AND grp = ?

-- name: overdue
SELECT {columns} FROM everlog_queue_item INDEXED BY everlog_queue_lease
WHERE jid = ? AND status = 'P' AND deadline_ms < ? ORDER BY deadline_ms LIMIT ?

-- name: running
SELECT {columns} FROM everlog_queue_item INDEXED BY everlog_queue_lease
WHERE jid = ? AND status = 'P' AND deadline_ms >= ? ORDER BY deadline_ms LIMIT ?

-- name: expired
SELECT {columns} FROM everlog_queue_item INDEXED BY everlog_queue_expiry
WHERE jid = ? AND status = 'W' AND expires_s > 0 AND expires_s * 1000 < ? AND expires_s <= ?
ORDER BY expires_s LIMIT ?

-- name: live_leases
SELECT count(*) FROM everlog_queue_item INDEXED BY everlog_queue_lease
WHERE jid = ? AND status = 'P' AND deadline_ms >= ?

-- name: next_process
SELECT min(process_ms) FROM {waiting} AND priority = ? AND process_ms > ?

-- name: next_deadline
SELECT min(deadline_ms) FROM everlog_queue_item INDEXED BY everlog_queue_lease WHERE jid = ? AND status = 'P'

-- name: next_expiry
SELECT min(expires_s) FROM everlog_queue_item INDEXED BY everlog_queue_expiry
WHERE jid = ? AND status = 'W' AND expires_s > 0

-- name: count_waiting
SELECT count(*), coalesce(sum(process_ms <= ?), 0), min(process_ms) FROM {waiting} AND (expires_s = 0 OR expires_s * 1000 >= ?)

-- name: count_overdue
SELECT count(*), min(process_ms) FROM everlog_queue_item
WHERE jid = ? AND status = 'P' AND deadline_ms < ? AND (expires_s = 0 OR expires_s * 1000 >= ?)

-- name: page
SELECT {columns} FROM {waiting} AND (priority, process_ms, kh, id) > (?, ?, ?, ?)
    AND (expires_s = 0 OR expires_s * 1000 >= ?)
ORDER BY priority, process_ms, kh, id LIMIT ?

-- name: any
SELECT 1 FROM everlog_queue_item LIMIT 1

-- name: any_of_queue
SELECT 1 FROM everlog_queue_item INDEXED BY everlog_queue_key WHERE jid = ? LIMIT 1

-- name: count_of_queue
SELECT count(*) + count(slot) FROM everlog_queue_item INDEXED BY everlog_queue_key WHERE jid = ?

-- name: delete_of_queue
DELETE FROM everlog_queue_item
WHERE id IN (SELECT id FROM everlog_queue_item INDEXED BY everlog_queue_key WHERE jid = ? LIMIT ?)

-- name: delete_marks
DELETE FROM everlog_queue_fired WHERE jid = ?

-- name: lock
DELETE FROM everlog_queue_moved WHERE id IS NULL

-- name: some
SELECT {columns}, jid FROM everlog_queue_item ORDER BY id LIMIT ?

-- name: moved
SELECT id FROM everlog_queue_moved

-- name: add_moved
INSERT OR IGNORE INTO everlog_queue_moved (id) VALUES (?)

-- name: clear_moved
DELETE FROM everlog_queue_moved

-- name: exists
SELECT 1 FROM everlog_queue_item WHERE id = ?

-- name: mark
INSERT OR REPLACE INTO everlog_queue_fired (jid, name, done_ms, fired_ms) VALUES (?, ?, ?, ?)

-- name: unmark
DELETE FROM everlog_queue_fired WHERE jid = ? AND name = ?

-- name: marks
SELECT name, done_ms, fired_ms FROM everlog_queue_fired WHERE jid = ?

-- name: all_marks
SELECT done_ms, fired_ms, jid, name FROM everlog_queue_fired
