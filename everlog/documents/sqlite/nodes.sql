-- name: create
CREATE TABLE IF NOT EXISTS node (
    id      TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    state   TEXT NOT NULL,
    beat    INTEGER NOT NULL,
    view    TEXT NOT NULL,
    seen_ms INTEGER NOT NULL
) WITHOUT ROWID

-- name: nodes
SELECT id, address, state, beat, view, seen_ms FROM node ORDER BY id

-- name: save
INSERT OR REPLACE INTO node (id, address, state, beat, view, seen_ms) VALUES (?, ?, ?, ?, ?, ?)

-- name: remove
DELETE FROM node WHERE id = ?
