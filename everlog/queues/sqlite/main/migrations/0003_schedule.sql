-- What schedules are declared to be. `done_ms` and `fired_ms` count unless a bucket file has a later mark.

CREATE TABLE IF NOT EXISTS everlog_queue_schedule (
    jid      INTEGER NOT NULL,
    name     TEXT NOT NULL,
    schedule BLOB NOT NULL,
    done_ms  INTEGER NOT NULL,
    fired_ms INTEGER,
    PRIMARY KEY (jid, name)
) WITHOUT ROWID;
