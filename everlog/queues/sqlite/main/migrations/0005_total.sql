-- What all processes did with the queues, by kind: each adds what it did, every few seconds.

CREATE TABLE IF NOT EXISTS everlog_queue_total (
    jid    INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (jid, kind)
) WITHOUT ROWID;
