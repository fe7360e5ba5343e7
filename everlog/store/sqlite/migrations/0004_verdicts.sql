-- Records that did not simply count where they stand: appends that lost, records that waited in quarantine, and what a
-- Resume took up (`taken`: the offset of that record; else -1). Kept as long as the log keeps the records.
CREATE TABLE verdict (
    topic     TEXT NOT NULL,
    partition INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    taken     INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    id        TEXT NOT NULL,
    timestamp INTEGER,
    key       BLOB,
    action    BLOB,
    value     BLOB,
    headers   BLOB,
    PRIMARY KEY (topic, partition, offset, taken)
) WITHOUT ROWID;
