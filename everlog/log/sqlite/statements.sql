-- name: topic
SELECT nr, name, id, partitions FROM topic WHERE name = ?

-- name: topics
SELECT nr, name, id, partitions FROM topic ORDER BY name

-- name: insert_topic
INSERT INTO topic (name, id, partitions, created) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: insert_partition
INSERT INTO partition (topic, partition) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: bounds
SELECT p.start_offset, max(p.end_offset, coalesce((
    SELECT max(r.offset) + 1 FROM record r WHERE r.topic = p.topic AND r.partition = p.partition), 0))
FROM partition p WHERE p.topic = ? AND p.partition = ?

-- name: start
SELECT start_offset FROM partition WHERE topic = ? AND partition = ?

-- name: append
INSERT INTO record (topic, partition, offset, timestamp, key, action, value, headers) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: previous
SELECT max(offset) FROM record WHERE topic = ? AND partition = ? AND key = ?

-- name: tail
SELECT partition, offset, timestamp, key, action, value, headers FROM record INDEXED BY record_key
WHERE topic = ? AND partition = ? AND key = ? AND offset > ? AND offset < ? ORDER BY offset LIMIT ?

-- name: tail_keys
SELECT DISTINCT key FROM record WHERE topic = ? AND partition = ? AND offset > ? AND offset < ? AND key IS NOT NULL

-- name: range
SELECT partition, offset, timestamp, key, action, value, headers FROM record
WHERE topic = ? AND partition = ? AND offset >= ? AND offset < ? ORDER BY offset

-- name: size_of
SELECT coalesce(sum(coalesce(length(value), 0) + coalesce(length(action), 0) + coalesce(length(key), 0)
    + coalesce(length(headers), 0)), 0)
FROM record WHERE topic = ? AND partition = ? AND offset >= ? AND offset < ?

-- name: ages_and_sizes
SELECT offset, timestamp, coalesce(length(value), 0) + coalesce(length(action), 0) + coalesce(length(key), 0)
    + coalesce(length(headers), 0)
FROM record WHERE topic = ? AND partition = ? AND offset >= ? AND offset < ? ORDER BY offset

-- name: timestamp_at
SELECT timestamp FROM record WHERE topic = ? AND partition = ? AND offset >= ? ORDER BY offset LIMIT 1

-- name: trim
DELETE FROM record WHERE topic = ? AND partition = ? AND offset < ?

-- name: set_start
UPDATE partition SET start_offset = max(start_offset, ?1), end_offset = max(end_offset, ?1)
WHERE topic = ?2 AND partition = ?3
