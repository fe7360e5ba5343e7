-- name: leases
SELECT key, owner, epoch, beat FROM projection_lease WHERE name = ?

-- name: lease
SELECT owner, epoch, beat FROM projection_lease WHERE name = ? AND key = ?

-- name: next_epoch
SELECT coalesce(max(epoch), 0) + 1 FROM projection_lease WHERE name = ?

-- name: take
INSERT INTO projection_lease (name, key, owner, epoch, beat, report) VALUES (?1, ?2, ?3, ?4, ?5, '{}')
ON CONFLICT DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, beat = excluded.beat

-- name: renew
UPDATE projection_lease SET beat = beat + 1, report = ?4 WHERE name = ?1 AND key = ?2 AND owner = ?3

-- name: release
UPDATE projection_lease SET owner = NULL, beat = beat + 1, report = ?4 WHERE name = ?1 AND key = ?2 AND owner = ?3

-- name: raise_epoch
INSERT INTO projection_lease (name, key, owner, epoch, beat, report) VALUES (?1, ?2, NULL, ?3, 0, '{}')
ON CONFLICT DO UPDATE SET epoch = excluded.epoch

-- name: join
INSERT INTO projection_instance (name, owner, beat) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET beat = beat + 1

-- name: leave
DELETE FROM projection_instance WHERE name = ? AND owner = ?

-- name: instances
SELECT owner, beat FROM projection_instance WHERE name = ?

-- name: offsets
SELECT entry, key, offset, manifest, mergeable, updated FROM projection_offset WHERE name = ? ORDER BY entry

-- name: mirrored
SELECT projection_key, projection_key, offset, manifest, coalesce(mergeable, 0), last_updated FROM offset_store
WHERE projection_name = ? AND offset IS NOT NULL AND manifest IS NOT NULL ORDER BY projection_key

-- name: save
INSERT INTO projection_offset (name, entry, key, epoch, saves, offset, manifest, mergeable, updated)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8)
ON CONFLICT DO UPDATE SET key = excluded.key, epoch = excluded.epoch, saves = saves + 1, offset = excluded.offset,
    manifest = excluded.manifest, mergeable = excluded.mergeable, updated = excluded.updated

-- name: mirror
INSERT INTO offset_store (projection_name, partition, projection_key, offset, manifest, last_updated, mergeable)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO UPDATE SET offset = excluded.offset, manifest = excluded.manifest,
    last_updated = excluded.last_updated, mergeable = excluded.mergeable

-- name: clear
DELETE FROM projection_offset WHERE name = ? AND entry = ?

-- name: clear_mirror
DELETE FROM offset_store WHERE projection_name = ? AND partition = ? AND projection_key = ?

-- name: claims
SELECT entry, key, epoch FROM projection_claim WHERE name = ?

-- name: claim
INSERT INTO projection_claim (name, entry, key, epoch) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET key = excluded.key, epoch = excluded.epoch

-- name: claim_offset
UPDATE projection_offset SET key = ?3 WHERE name = ?1 AND entry = ?2 AND mergeable = 1

-- name: claimed_later
SELECT 1 FROM projection_claim WHERE name = ?1 AND entry = ?2 AND epoch > ?3

-- name: positions
SELECT key, topic, partition, offset FROM projection_position WHERE name = ?

-- name: save_position
INSERT INTO projection_position (name, key, topic, partition, offset) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET offset = excluded.offset

-- name: clear_positions
DELETE FROM projection_position WHERE name = ? AND key = ?

-- name: desired
SELECT projection_key, coalesce(paused, 0), skip, coalesce(version, 0) FROM projection_management
WHERE projection_name = ?

-- name: want
INSERT INTO projection_management (projection_name, partition, projection_key, paused, last_updated, skip, version)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1)
ON CONFLICT DO UPDATE SET paused = excluded.paused, last_updated = excluded.last_updated, skip = excluded.skip,
    version = coalesce(version, 0) + 1

-- name: bury
INSERT INTO projection_dead_letter (name, key, offset, manifest, cause, attempts, payload, created, requested, nr)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, (
    SELECT coalesce(max(nr), 0) + 1 FROM projection_dead_letter WHERE name = ?1 AND key = ?2))
ON CONFLICT DO UPDATE SET cause = excluded.cause, attempts = excluded.attempts, payload = excluded.payload,
    requested = 0

-- name: dead_letters
SELECT name, key, offset, manifest, cause, attempts, payload, created, requested FROM projection_dead_letter
WHERE name = ?1 AND (?2 IS NULL OR key = ?2) AND (?3 = 0 OR requested = 1) ORDER BY key, nr LIMIT ?4

-- name: letters_of
SELECT offset FROM projection_dead_letter WHERE name = ? AND key = ?

-- name: move_letter
UPDATE OR REPLACE projection_dead_letter SET key = ?3 WHERE name = ?1 AND key = ?2 AND offset = ?4

-- name: request_replay
UPDATE projection_dead_letter SET requested = 1
WHERE name = ?1 AND key = ?2 AND (?3 IS NULL OR offset = ?3) AND payload IS NOT NULL

-- name: forget_letter
DELETE FROM projection_dead_letter WHERE name = ? AND key = ? AND offset = ?

-- name: forget_letters
DELETE FROM projection_dead_letter WHERE name = ?1 AND key = ?2 AND (?3 IS NULL OR offset = ?3)

-- name: failed_again
UPDATE projection_dead_letter SET requested = 0, attempts = attempts + 1, cause = ?4
WHERE name = ?1 AND key = ?2 AND offset = ?3

-- name: count_letters
SELECT name, key, count(*) FROM projection_dead_letter GROUP BY name, key

-- name: reports
SELECT name, key, owner, epoch, beat, report FROM projection_lease

-- name: names
SELECT name, key FROM projection_lease UNION SELECT name, key FROM projection_offset
UNION SELECT projection_name, projection_key FROM offset_store WHERE NOT EXISTS (
    SELECT 1 FROM projection_offset WHERE name = projection_name AND entry = projection_key)
ORDER BY 1, 2

-- name: copies
SELECT copies FROM projection_copy WHERE name = ?

-- name: put_copies
INSERT INTO projection_copy (name, copies) VALUES (?, ?) ON CONFLICT DO UPDATE SET copies = excluded.copies

-- name: defined
SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE AND sql IS NOT NULL ORDER BY type = 'table' DESC

-- name: erase_leases
DELETE FROM projection_lease WHERE name = ?

-- name: erase_instances
DELETE FROM projection_instance WHERE name = ?

-- name: erase_offsets
DELETE FROM projection_offset WHERE name = ?

-- name: erase_claims
DELETE FROM projection_claim WHERE name = ?

-- name: erase_positions
DELETE FROM projection_position WHERE name = ?

-- name: erase_letters
DELETE FROM projection_dead_letter WHERE name = ?

-- name: erase_mirror
DELETE FROM offset_store WHERE projection_name = ?

-- name: erase_wishes
DELETE FROM projection_management WHERE projection_name = ?
