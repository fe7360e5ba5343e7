-- The jobs of a bucket: one file per bucket, which may hold several queues. A job has the same entry id in whichever
-- bucket it is.

CREATE TABLE IF NOT EXISTS everlog_queue_item (
    id          INTEGER PRIMARY KEY,
    jid         INTEGER NOT NULL,
    kh          BLOB NOT NULL,
    ukey        BLOB NOT NULL,
    priority    INTEGER NOT NULL,
    process_ms  INTEGER NOT NULL,
    inserted_ms INTEGER NOT NULL,
    expires_s   INTEGER NOT NULL,
    data_date   INTEGER NOT NULL,
    schema_v    INTEGER NOT NULL,
    status      TEXT NOT NULL,
    claimed_ms  INTEGER,
    start_ms    INTEGER,
    lease_ms    INTEGER NOT NULL,
    deadline_ms INTEGER,
    timeouts    INTEGER NOT NULL,
    lifetime    INTEGER NOT NULL,
    token       INTEGER NOT NULL,
    owner       TEXT,
    stop        TEXT,
    stop_reason TEXT,
    attempts    BLOB,
    slot        BLOB,
    data        BLOB NOT NULL
);

CREATE INDEX IF NOT EXISTS everlog_queue_key ON everlog_queue_item (jid, kh);

CREATE INDEX IF NOT EXISTS everlog_queue_lease ON everlog_queue_item (jid, deadline_ms) WHERE status = 'P';

CREATE INDEX IF NOT EXISTS everlog_queue_expiry ON everlog_queue_item (jid, expires_s)
WHERE status = 'W' AND expires_s > 0;

-- Jobs that were moved here from an older bucket, whose copy there may not be deleted yet.
CREATE TABLE IF NOT EXISTS everlog_queue_moved (id INTEGER PRIMARY KEY);
