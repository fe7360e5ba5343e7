-- How far schedules are: the mark is written with the job that was put, in the same file. The latest of all buckets
-- counts; before a bucket is put away, the main file takes its marks over.

CREATE TABLE IF NOT EXISTS everlog_queue_fired (
    jid      INTEGER NOT NULL,
    name     TEXT NOT NULL,
    done_ms  INTEGER NOT NULL,
    fired_ms INTEGER,
    PRIMARY KEY (jid, name)
) WITHOUT ROWID;
