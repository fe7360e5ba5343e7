-- name: head
SELECT revision, is_deleted, count, last_id, messages, is_view,
       (SELECT count(*) FROM outbox o WHERE o.document_uri = h.document_uri AND o.completed_at IS NULL AND o.accepted)
FROM head h WHERE document_uri = ?

-- name: row
SELECT body, revision, created_at, modified_at, expires_at FROM content WHERE document_uri = ? AND item_id = ?

-- name: whole_rows
SELECT item_id, body, revision, created_at, modified_at, expires_at FROM content
WHERE document_uri = ? AND item_id IN (SELECT value FROM json_each(?))

-- name: messages
SELECT message_id, answer FROM message WHERE document_uri = ? AND message_id IN (SELECT value FROM json_each(?))

-- name: put_message
INSERT OR REPLACE INTO message (document_uri, message_id, stored_at, answer) VALUES (?, ?, ?, ?)

-- name: forget_messages
DELETE FROM message WHERE rowid IN (SELECT rowid FROM message WHERE stored_at < ? ORDER BY stored_at LIMIT ?)

-- name: revision
SELECT revision FROM head WHERE document_uri = ?

-- name: put_head
INSERT INTO head (document_uri, revision, is_deleted, count, last_id, messages, is_view) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET revision = excluded.revision, is_deleted = excluded.is_deleted, count = excluded.count,
    last_id = excluded.last_id, messages = excluded.messages, is_view = excluded.is_view

-- name: put_row
INSERT INTO content (document_uri, item_id, body, revision, created_at, modified_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET body = excluded.body, revision = excluded.revision, created_at = excluded.created_at,
    modified_at = excluded.modified_at, expires_at = excluded.expires_at

-- name: expiring
SELECT expires_at, document_uri, item_id FROM content
WHERE expires_at IS NOT NULL AND expires_at <= ? AND (expires_at, document_uri, item_id) > (?, ?, ?)
ORDER BY expires_at, document_uri, item_id LIMIT ?

-- name: delete_row
DELETE FROM content WHERE document_uri = ? AND item_id = ?

-- name: delete_rows
DELETE FROM content WHERE document_uri = ?

-- name: add_transaction
INSERT INTO outbox (document_uri, uuid, revision, item_id, quantum, event, old_body, accepted, completed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: transaction
SELECT document_uri, uuid, revision, item_id, event, old_body, completed_at, accepted
FROM outbox WHERE document_uri = ? AND uuid = ?

-- name: pending
SELECT document_uri, uuid, revision, item_id, event, old_body, completed_at, accepted
FROM outbox WHERE document_uri = ? AND completed_at IS NULL AND accepted ORDER BY revision LIMIT ?

-- name: pending_writes
SELECT revision, item_id, CASE WHEN item_id = '' THEN substr(event, 1, 100) END
FROM outbox WHERE document_uri = ? AND completed_at IS NULL AND accepted ORDER BY revision

-- name: complete
UPDATE outbox SET completed_at = ? WHERE document_uri = ? AND uuid = ? AND completed_at IS NULL

-- name: abandon
UPDATE outbox SET completed_at = ? WHERE document_uri = ? AND uuid = ? AND completed_at IS NULL AND NOT accepted

-- name: incomplete
SELECT document_uri, uuid, revision, quantum, rowid FROM outbox
WHERE completed_at IS NULL AND quantum <= ? AND (quantum, rowid) > (?, ?) ORDER BY quantum, rowid LIMIT ?

-- name: forget
DELETE FROM outbox WHERE rowid IN
    (SELECT rowid FROM outbox WHERE completed_at IS NOT NULL AND completed_at < ? ORDER BY completed_at LIMIT ?)

-- name: elements
-- A blob comes behind every text: no upper bound then, and still a range that is searched, not scanned.
SELECT item_id, body FROM content
WHERE document_uri = ? AND item_id >= ? AND item_id < coalesce(?, x'') ORDER BY item_id LIMIT ?

-- name: elements_after
SELECT item_id, body, revision FROM content WHERE document_uri = ? AND item_id > ? ORDER BY item_id LIMIT ?

-- name: elements_reverse
SELECT item_id, body FROM content
WHERE document_uri = ? AND item_id >= ? AND item_id < coalesce(?, x'') ORDER BY item_id DESC LIMIT ?

-- name: rows
SELECT item_id, body FROM content
WHERE document_uri = ? AND item_id IN (SELECT value FROM json_each(?)) ORDER BY item_id

-- name: count_others
SELECT count - (SELECT count(*) FROM index_entry WHERE definition_id = ? AND item_id IN (SELECT value FROM json_each(?)))
FROM index_def WHERE document_uri = ? AND index_id = ? AND definition_id = ?

-- name: entries
SELECT sort_key, body FROM index_entry
WHERE definition_id = ? AND sort_key >= ? AND sort_key < ? ORDER BY sort_key LIMIT ?

-- name: entries_reverse
SELECT sort_key, body FROM index_entry
WHERE definition_id = ? AND sort_key >= ? AND sort_key < ? ORDER BY sort_key DESC LIMIT ?

-- name: indexes
SELECT index_id, sort_by, filter_by, status, definition_id, built_to, revision, count, reason, since
FROM index_def WHERE document_uri = ? ORDER BY index_id

-- name: pending_indexes
SELECT document_uri, index_id, sort_by, filter_by, status, definition_id, built_to, revision, count, reason, since
FROM index_def WHERE status IN (0, 1) ORDER BY document_uri, index_id

-- name: create_index
INSERT INTO index_def (document_uri, index_id, sort_by, filter_by, status, definition_id, built_to, revision, count,
    reason, since) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: mark_index
UPDATE index_def SET status = ?, reason = ?
WHERE document_uri = ? AND index_id = ? AND definition_id = ? AND status NOT IN (1, ?1)

-- name: index_status
SELECT status, built_to FROM index_def WHERE document_uri = ? AND index_id = ? AND definition_id = ?

-- name: built
UPDATE index_def SET built_to = ?, count = count + ? WHERE document_uri = ? AND index_id = ? AND definition_id = ?

-- name: counted
UPDATE index_def SET count = count + ? WHERE document_uri = ? AND index_id = ? AND definition_id = ?

-- name: finish
UPDATE index_def SET status = 2, revision = max(revision, ?)
WHERE document_uri = ? AND index_id = ? AND definition_id = ? AND status = 0

-- name: ready
UPDATE index_def SET status = 2, revision = max(revision, coalesce(
    (SELECT h.revision FROM head h WHERE h.document_uri = index_def.document_uri), 0))
WHERE document_uri = ? AND index_id = ? AND definition_id = ? AND status = 0

-- name: indexed
UPDATE index_def SET revision = max(revision, ?), count = count + ?
WHERE document_uri = ? AND index_id = ? AND definition_id = ?

-- name: entry
SELECT sort_key FROM index_entry WHERE definition_id = ? AND item_id = ?

-- name: put_entry
INSERT INTO index_entry (definition_id, item_id, sort_key, body) VALUES (?, ?, ?, ?)
ON CONFLICT (definition_id, item_id) DO UPDATE SET sort_key = excluded.sort_key, body = excluded.body

-- name: delete_entry
DELETE FROM index_entry WHERE definition_id = ? AND item_id = ?

-- name: delete_entries
DELETE FROM index_entry WHERE rowid IN (SELECT rowid FROM index_entry WHERE definition_id = ? LIMIT ?)

-- name: delete_index
DELETE FROM index_def WHERE document_uri = ? AND index_id = ? AND definition_id = ?

-- name: checkpoints
SELECT partition, last_quantum FROM checkpoint

-- name: save_checkpoint
INSERT INTO checkpoint (partition, last_quantum) VALUES (?, ?)
ON CONFLICT DO UPDATE SET last_quantum = excluded.last_quantum WHERE last_quantum < excluded.last_quantum

-- name: places
SELECT document_uri, item_id FROM content
WHERE (document_uri, item_id) >= (?, ?) AND document_uri < ?
ORDER BY document_uri, item_id LIMIT ?

-- name: cut
SELECT item_id FROM (
    SELECT item_id, row_number() OVER (ORDER BY item_id) AS number FROM content WHERE document_uri = ?
) WHERE number % ? = 0 ORDER BY item_id

-- name: views
SELECT document_uri, template_uri, filter, filled, recheck FROM view_def ORDER BY document_uri

-- name: put_view
INSERT INTO view_def (document_uri, template_uri, filter, filled) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: mark_filled
UPDATE view_def SET filled = 1 WHERE document_uri = ?

-- name: recheck_view
UPDATE view_def SET recheck = ?, filled = filled AND NOT ? WHERE document_uri = ?

-- name: mark_checked
UPDATE view_def SET recheck = NULL WHERE document_uri = ? AND recheck = ?

-- name: delete_view
DELETE FROM view_def WHERE document_uri = ?

-- name: unshown
SELECT document_uri, source, code, reason, revision, since, attempts FROM view_unshown
WHERE document_uri = ? AND source = ?

-- name: unshown_page
SELECT document_uri, source, code, reason, revision, since, attempts FROM view_unshown
WHERE document_uri = ? AND source > ? ORDER BY source LIMIT ?

-- name: unshown_count
SELECT count(*) FROM view_unshown WHERE document_uri = ?

-- name: add_unshown
INSERT INTO view_unshown (document_uri, source, code, reason, revision, since, attempts)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: replace_unshown
UPDATE view_unshown SET code = ?, reason = ?, revision = ?, since = ?, attempts = ?
WHERE document_uri = ? AND source = ? AND revision = ? AND attempts = ?

-- name: remove_unshown
DELETE FROM view_unshown WHERE document_uri = ? AND source = ? AND revision = ? AND attempts = ?

-- name: clear_unshown
DELETE FROM view_unshown WHERE document_uri = ?

-- name: template_indexes
SELECT index_id, template_uri, definition FROM template_index_def ORDER BY index_id

-- name: put_template_index
INSERT INTO template_index_def (index_id, template_uri, definition) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: delete_template_index
DELETE FROM template_index_def WHERE index_id = ?

-- name: schema_keys
SELECT schema_id, template_uri, version FROM schema_def ORDER BY schema_id

-- name: schema
SELECT schema_id, template_uri, definition, version, modified_at FROM schema_def WHERE schema_id = ?

-- name: add_schema
INSERT INTO schema_def (schema_id, template_uri, definition, version, modified_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: replace_schema
UPDATE schema_def SET template_uri = ?, definition = ?, version = ?, modified_at = ? WHERE schema_id = ?

-- name: delete_schema
DELETE FROM schema_def WHERE schema_id = ?

-- name: delete_schema_check
DELETE FROM schema_check WHERE schema_id = ?

-- name: schema_checks
SELECT beat, body FROM schema_check ORDER BY schema_id

-- name: schema_check
SELECT beat, body FROM schema_check WHERE schema_id = ?

-- name: add_schema_check
INSERT INTO schema_check (schema_id, beat, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: save_schema_check
UPDATE schema_check SET beat = ?, body = ? WHERE schema_id = ? AND beat = ?

-- name: collections
SELECT document_uri, revision, count, is_view,
    (SELECT count(*) FROM index_def WHERE index_def.document_uri = head.document_uri AND status <> ?)
FROM head INDEXED BY head_collections
WHERE substr(document_uri, -1) = '~' AND NOT is_deleted AND document_uri >= ? AND document_uri < ?
ORDER BY document_uri LIMIT ?
