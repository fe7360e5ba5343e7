-- name: pin
INSERT INTO setting (key, value, timestamp) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: setting
SELECT value FROM setting WHERE key = ?

-- name: pinned
SELECT value FROM setting WHERE key >= 'topic:' AND key < 'topic;' ORDER BY key

-- name: pointer
SELECT offset FROM pointer2 WHERE topic = ? AND partition = ?

-- name: pointers
SELECT partition, offset FROM pointer2 WHERE topic = ?

-- name: publish
INSERT INTO pointer2 (topic, partition, offset, created, updated) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET offset = excluded.offset, updated = excluded.updated WHERE offset < excluded.offset

-- name: head
SELECT partition, offset, segment_size, seq_nr, delete_to, created, updated, expire_after, expire_on, record_id,
       origin, purged, halted_at, garbage, segment, tag_seq, expire_at
FROM metajournal WHERE topic = ?1 AND segment = ?3 AND id = ?2
UNION ALL
SELECT partition, offset, segment_size, seq_nr, delete_to, created, updated, expire_after, expire_on, record_id,
       origin, purged, halted_at, garbage, segment, tag_seq, expire_at
FROM metajournal WHERE topic = ?1 AND segment = ?4 AND id = ?2 AND ?4 <> ?3

-- name: put_head
INSERT INTO metajournal (topic, segment, id, partition, offset, segment_size, seq_nr, delete_to, created,
    created_date, updated, expire_after, expire_on, record_id, origin, purged, halted_at, garbage, tag_seq, expire_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET partition = excluded.partition, offset = excluded.offset,
    segment_size = excluded.segment_size, seq_nr = excluded.seq_nr, delete_to = excluded.delete_to,
    created = excluded.created, created_date = excluded.created_date, updated = excluded.updated,
    expire_after = excluded.expire_after, expire_on = excluded.expire_on, record_id = excluded.record_id,
    origin = excluded.origin, purged = excluded.purged, halted_at = excluded.halted_at,
    garbage = excluded.garbage, tag_seq = excluded.tag_seq, expire_at = excluded.expire_at
WHERE offset < excluded.offset

-- name: put_row
INSERT INTO journal (id, topic, segment, seq_nr, timestamp, partition, offset, origin, version, meta_record_id,
    tags, metadata, payload_type, payload_txt, headers, append_id, ordering)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET partition = excluded.partition, offset = excluded.offset, origin = excluded.origin,
    version = excluded.version, meta_record_id = excluded.meta_record_id, tags = excluded.tags,
    metadata = excluded.metadata, payload_type = excluded.payload_type, payload_txt = excluded.payload_txt,
    payload_bin = excluded.payload_bin, headers = excluded.headers, append_id = excluded.append_id,
    ordering = excluded.ordering
WHERE offset < excluded.offset

-- name: put_binary_row
INSERT INTO journal (id, topic, segment, seq_nr, timestamp, partition, offset, origin, version, meta_record_id,
    tags, metadata, payload_type, payload_bin, headers, append_id, ordering)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET partition = excluded.partition, offset = excluded.offset, origin = excluded.origin,
    version = excluded.version, meta_record_id = excluded.meta_record_id, tags = excluded.tags,
    metadata = excluded.metadata, payload_type = excluded.payload_type, payload_txt = excluded.payload_txt,
    payload_bin = excluded.payload_bin, headers = excluded.headers, append_id = excluded.append_id,
    ordering = excluded.ordering
WHERE offset < excluded.offset

-- name: delete_rows
DELETE FROM journal WHERE id = ? AND topic = ? AND segment BETWEEN ? AND ? AND seq_nr <= ? AND offset < ?

-- name: delete_life_snapshots
DELETE FROM snapshot_buffer WHERE id = ? AND topic = ? AND record_id IS ?

-- name: delete_waiting
DELETE FROM quarantine WHERE topic = ? AND id = ? AND kind = 'halted' AND offset <= ?

-- name: rows
SELECT seq_nr, timestamp, partition, offset, payload_type, coalesce(payload_txt, payload_bin), tags, origin, version,
       meta_record_id, append_id, metadata, headers, ordering
FROM journal
WHERE id = ? AND topic = ? AND (segment, seq_nr, timestamp) > (?, ?, ?) AND segment <= ?
  AND seq_nr BETWEEN ? AND ? AND segment = (seq_nr - 1) / ?
ORDER BY segment, seq_nr, timestamp LIMIT ?

-- name: rows_reverse
SELECT seq_nr, timestamp, partition, offset, payload_type, coalesce(payload_txt, payload_bin), tags, origin, version,
       meta_record_id, append_id, metadata, headers, ordering
FROM journal
WHERE id = ? AND topic = ? AND (segment, seq_nr, timestamp) < (?, ?, ?) AND segment >= ?
  AND seq_nr BETWEEN ? AND ? AND segment = (seq_nr - 1) / ?
ORDER BY segment DESC, seq_nr DESC, timestamp DESC LIMIT ?

-- name: ids
SELECT segment, id FROM metajournal
WHERE topic = ? AND (segment, id) > (?, ?) AND purged = 0 ORDER BY segment, id LIMIT ?

-- name: expired
SELECT expire_on, segment, id FROM metajournal
WHERE topic = ? AND expire_on IS NOT NULL AND expire_on <= ? AND (expire_on, segment, id) > (?, ?, ?)
  AND (expire_at IS NULL OR expire_at <= ?) AND purged = 0 AND halted_at IS NULL
ORDER BY expire_on, segment, id LIMIT ?

-- name: drop_markers
DELETE FROM metajournal WHERE topic = ? AND purged = 1 AND halted_at IS NULL AND tag_seq IS NULL AND updated < ?
  AND offset <= (SELECT p.offset FROM pointer2 p WHERE p.topic = metajournal.topic AND p.partition = metajournal.partition)

-- name: put_waiting
INSERT INTO quarantine (topic, partition, offset, id, kind, reason, timestamp, key, action, value, headers)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: waiting
SELECT partition, offset, timestamp, key, action, value, headers, reason FROM quarantine
WHERE topic = ? AND id = ? AND kind = 'halted' ORDER BY offset

-- name: quarantine
SELECT topic, id, kind, reason, partition, offset, timestamp, key, action, value, headers FROM quarantine
WHERE (topic, partition, offset) > (?, ?, ?) AND (topic = ? OR ? IS NULL) ORDER BY topic, partition, offset LIMIT ?

-- name: count_quarantined
SELECT count(*) FROM (SELECT 1 FROM quarantine LIMIT ?)

-- name: put_rejected
INSERT INTO rejected (topic, partition, offset, id, timestamp, reason, first, last, expected, actual, append_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: trim_rejected
DELETE FROM rejected WHERE topic = ? AND partition = ? AND offset <= (
    SELECT offset FROM rejected WHERE topic = ? AND partition = ? ORDER BY offset DESC LIMIT 1 OFFSET ?)

-- name: rejected
SELECT id, partition, offset, timestamp, reason, first, last, expected, actual, append_id FROM rejected
WHERE topic = ? ORDER BY timestamp DESC, partition, offset DESC LIMIT ?

-- name: put_verdict
INSERT INTO verdict (topic, partition, offset, taken, kind, id, timestamp, key, action, value, headers)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: verdicts
SELECT offset, kind, id, partition, taken, timestamp, key, action, value, headers FROM verdict
WHERE topic = ? AND partition = ? AND offset BETWEEN ? AND ? ORDER BY offset, taken

-- name: drop_verdicts
DELETE FROM verdict WHERE topic = ? AND partition = ? AND offset < ?

-- name: snapshots
SELECT buffer_idx, seq_nr, timestamp, payload_type, coalesce(payload_txt, payload_bin), record_id, origin, version,
       metadata
FROM snapshot_buffer WHERE id = ? AND topic = ?

-- name: put_snapshot
INSERT OR REPLACE INTO snapshot_buffer (id, topic, buffer_idx, seq_nr, timestamp, payload_type, payload_txt,
    payload_bin, record_id, origin, version, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: delete_snapshot
DELETE FROM snapshot_buffer WHERE id = ? AND topic = ? AND seq_nr = ?

-- name: save_status
INSERT OR REPLACE INTO status (name, value, updated) VALUES (?, ?, ?)

-- name: statuses
SELECT name, value FROM status ORDER BY name

-- name: tag_settings
SELECT key, value FROM setting WHERE key >= ? AND key < ?

-- name: plans
SELECT plan FROM tag_plan WHERE nr >= ? ORDER BY nr

-- name: last_plan
SELECT max(nr) FROM tag_plan

-- name: add_plan
INSERT INTO tag_plan (nr, plan) VALUES (?, ?)

-- name: drop_plans
DELETE FROM tag_plan WHERE nr < ?

-- name: watermark
SELECT nr, tick, positions FROM tag_watermark

-- name: put_watermark
INSERT INTO tag_watermark (id, nr, tick, positions) VALUES (0, ?, ?, ?)
ON CONFLICT DO UPDATE SET nr = excluded.nr, tick = excluded.tick, positions = excluded.positions
WHERE nr < excluded.nr

-- name: put_bucket
INSERT INTO tag_buckets (tag_name, timebucket, size, shard) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: buckets
SELECT timebucket, size, nullif(shard, -1) FROM tag_buckets
WHERE tag_name = ?1 AND timebucket >= ?2 - ?3 AND timebucket + size > ?2 ORDER BY timebucket, size, shard

-- name: delete_bucket
DELETE FROM tag_buckets WHERE tag_name = ? AND timebucket = ? AND size = ? AND shard = ?

-- name: put_tagged
INSERT INTO tag_views (tag_name, timebucket, tick, rank, topic, id, tag_seq_nr, seq_nr, timestamp, partition, offset,
    payload_type, payload_txt, payload_bin, tags, origin, version, record_id, append_id, metadata, headers)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: tagged
SELECT tick, rank, topic, id, tag_seq_nr, seq_nr, timestamp, partition, offset, payload_type,
       coalesce(payload_txt, payload_bin), tags, origin, version, record_id, append_id, metadata, headers
FROM tag_views WHERE tag_name = ? AND timebucket = ? AND (tick, rank) > (?, ?) AND (tick, rank) <= (?, ?)
ORDER BY tick, rank LIMIT ?

-- name: delete_tagged
DELETE FROM tag_views WHERE tag_name = ? AND timebucket = ? AND tick = ? AND rank = ? RETURNING tag_seq_nr

-- name: tagged_number
SELECT tag_seq_nr FROM tag_views WHERE tag_name = ? AND timebucket = ? AND tick = ? AND rank = ?

-- name: delete_progress
DELETE FROM tag_write_progress WHERE topic = ? AND id = ? AND tag = ?

-- name: put_progress
INSERT INTO tag_write_progress (topic, id, tag, seq_nr, tag_seq_nr, tick, rank) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq_nr = excluded.seq_nr, tag_seq_nr = excluded.tag_seq_nr, tick = excluded.tick,
    rank = excluded.rank
WHERE tag_seq_nr < excluded.tag_seq_nr

-- name: raise_lowest
UPDATE tag_write_progress SET lowest = ? WHERE topic = ? AND id = ? AND tag = ? AND lowest < ?

-- name: progress
SELECT tag, seq_nr, tag_seq_nr, tick, rank, lowest FROM tag_write_progress WHERE topic = ? AND id = ?

-- name: tag_summaries
SELECT tag, sum(tag_seq_nr - lowest + 1), count(*), max(tick), rank FROM tag_write_progress
WHERE tag > ? GROUP BY tag ORDER BY tag LIMIT ?

-- name: tagged_rows_to_delete
SELECT tags, ordering FROM journal
WHERE id = ? AND topic = ? AND segment BETWEEN ? AND ? AND seq_nr <= ? AND offset < ? AND ordering IS NOT NULL
