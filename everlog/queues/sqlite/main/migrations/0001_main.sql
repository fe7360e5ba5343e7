-- What all queues of a folder share, in the file main.db: names and options, entry ids, the list of bucket files, dead
-- letters, flags, and the starts that a rate limit counts.

CREATE TABLE IF NOT EXISTS everlog_queue (
    jid         INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT NOT NULL UNIQUE,
    declaration BLOB NOT NULL,
    paused      INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS everlog_queue_counter (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER NOT NULL);

INSERT OR IGNORE INTO everlog_queue_counter (one, next) VALUES (1, 1);

-- seq says which bucket is newer; kind, period_ms and version say what it is for. state: live, or retired once it was
-- drained.
CREATE TABLE IF NOT EXISTS everlog_queue_bucket (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    space     TEXT NOT NULL,
    file      TEXT NOT NULL UNIQUE,
    kind      TEXT NOT NULL,
    period_ms INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    state     TEXT NOT NULL DEFAULT 'live'
);

CREATE TABLE IF NOT EXISTS everlog_queue_dead (
    jid     INTEGER NOT NULL,
    entry   INTEGER NOT NULL,
    dead_ms INTEGER NOT NULL,
    letter  BLOB NOT NULL,
    PRIMARY KEY (jid, entry)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS everlog_queue_dead_age ON everlog_queue_dead (jid, dead_ms);

CREATE TABLE IF NOT EXISTS everlog_queue_flag (
    jid    INTEGER NOT NULL,
    reason TEXT NOT NULL,
    flag   BLOB NOT NULL,
    PRIMARY KEY (jid, reason)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS everlog_queue_start (
    jid   INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (jid, at_ms)
) WITHOUT ROWID;
