-- Queues that are deleted, and whose jobs are still in bucket files: a note of what is to be removed there. `jobs`: how
-- many there were.

CREATE TABLE IF NOT EXISTS everlog_queue_deleted (
    jid         INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    declaration BLOB NOT NULL,
    jobs        INTEGER NOT NULL
);
