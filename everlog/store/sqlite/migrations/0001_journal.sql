-- One row per journal: its head. A purged journal keeps a row with purged = 1.
CREATE TABLE metajournal (
    topic        TEXT NOT NULL,
    segment      INTEGER NOT NULL,
    id           TEXT NOT NULL,
    partition    INTEGER NOT NULL,
    offset       INTEGER NOT NULL,
    segment_size INTEGER NOT NULL,
    seq_nr       INTEGER,
    delete_to    INTEGER,
    created      INTEGER,
    created_date TEXT,
    updated      INTEGER,
    expire_after TEXT,
    expire_on    TEXT,
    record_id    TEXT,
    origin       TEXT,
    properties   TEXT,
    metadata     TEXT,
    purged       INTEGER NOT NULL DEFAULT 0,
    halted_at    INTEGER,
    garbage      TEXT,
    PRIMARY KEY (topic, segment, id)
) WITHOUT ROWID;

CREATE INDEX metajournal_expire_on ON metajournal (topic, expire_on) WHERE expire_on IS NOT NULL;
CREATE INDEX metajournal_markers ON metajournal (topic, updated) WHERE purged = 1;

-- One row per event.
CREATE TABLE journal (
    id             TEXT NOT NULL,
    topic          TEXT NOT NULL,
    segment        INTEGER NOT NULL,
    seq_nr         INTEGER NOT NULL,
    timestamp      INTEGER NOT NULL,
    partition      INTEGER NOT NULL,
    offset         INTEGER NOT NULL,
    origin         TEXT,
    version        TEXT,
    meta_record_id TEXT,
    tags           TEXT NOT NULL DEFAULT '',
    metadata       TEXT NOT NULL DEFAULT '',
    payload_type   TEXT,
    payload_txt    TEXT,
    payload_bin    BLOB,
    headers        TEXT NOT NULL DEFAULT '',
    append_id      TEXT,
    PRIMARY KEY (id, topic, segment, seq_nr, timestamp)
) WITHOUT ROWID;

-- How far each log partition is replicated.
CREATE TABLE pointer2 (
    topic     TEXT NOT NULL,
    partition INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    created   INTEGER NOT NULL,
    updated   INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;

-- What is pinned, and other facts of the installation.
CREATE TABLE setting (
    key       TEXT PRIMARY KEY,
    value     TEXT NOT NULL,
    timestamp INTEGER NOT NULL
) WITHOUT ROWID;

-- A ring of snapshots per journal.
CREATE TABLE snapshot_buffer (
    id           TEXT NOT NULL,
    topic        TEXT NOT NULL,
    buffer_idx   INTEGER NOT NULL,
    seq_nr       INTEGER NOT NULL,
    timestamp    INTEGER NOT NULL,
    payload_type TEXT,
    payload_txt  TEXT,
    payload_bin  BLOB,
    record_id    TEXT,
    origin       TEXT,
    version      TEXT,
    metadata     TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (id, topic, buffer_idx)
) WITHOUT ROWID;

-- Records that could not be applied, with their raw bytes.
CREATE TABLE quarantine (
    topic     TEXT NOT NULL,
    partition INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    id        TEXT,
    kind      TEXT NOT NULL,
    reason    TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    key       BLOB,
    action    BLOB,
    value     BLOB,
    headers   BLOB,
    PRIMARY KEY (topic, partition, offset)
) WITHOUT ROWID;

CREATE INDEX quarantine_id ON quarantine (topic, id, offset) WHERE kind = 'halted';

-- Appends that lost, for display.
CREATE TABLE rejected (
    topic     TEXT NOT NULL,
    partition INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    id        TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    reason    TEXT NOT NULL,
    first     INTEGER NOT NULL,
    last      INTEGER NOT NULL,
    expected  INTEGER,
    actual    INTEGER NOT NULL,
    append_id TEXT,
    PRIMARY KEY (topic, partition, offset)
) WITHOUT ROWID;

-- The last word of every service.
CREATE TABLE status (
    name    TEXT PRIMARY KEY,
    value   TEXT NOT NULL,
    updated INTEGER NOT NULL
) WITHOUT ROWID;
