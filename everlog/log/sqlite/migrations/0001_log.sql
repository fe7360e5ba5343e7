-- Topics. `id` is fresh for every creation, so that a topic made again under its old name is noticed.
CREATE TABLE topic (
    nr         INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    id         TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    created    INTEGER NOT NULL
);

-- Where each partition starts. It ends behind its last record; end_offset counts only when all were removed.
CREATE TABLE partition (
    topic        INTEGER NOT NULL,
    partition    INTEGER NOT NULL,
    start_offset INTEGER NOT NULL DEFAULT 0,
    end_offset   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;

CREATE TABLE record (
    topic     INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    timestamp INTEGER NOT NULL,
    key       BLOB,
    action    BLOB,
    value     BLOB,
    headers   BLOB,
    PRIMARY KEY (topic, partition, offset)
) WITHOUT ROWID;

-- One journal's tail without a scan of the others'.
CREATE INDEX record_key ON record (topic, partition, key, offset);
