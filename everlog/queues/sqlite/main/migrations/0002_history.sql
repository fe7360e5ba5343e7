-- Jobs that have ended, of queues that keep them. `number` counts them in each queue, so that a limit needs no count.

CREATE TABLE IF NOT EXISTS everlog_queue_ended (
    jid      INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    entry    INTEGER NOT NULL,
    token    INTEGER NOT NULL,
    kh       BLOB NOT NULL,
    ended    BLOB NOT NULL,
    PRIMARY KEY (jid, number)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS everlog_queue_ended_age ON everlog_queue_ended (jid, ended_ms, entry, token);

CREATE INDEX IF NOT EXISTS everlog_queue_ended_key ON everlog_queue_ended (jid, kh, ended_ms, entry, token);
