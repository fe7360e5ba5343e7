-- Groups of jobs: the starts that a rate limit for each of them counts, and whose last start is how long ago.

CREATE TABLE IF NOT EXISTS everlog_queue_group_start (
    jid   INTEGER NOT NULL,
    grp   TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (jid, grp, at_ms)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS everlog_queue_group_start_age ON everlog_queue_group_start (jid, at_ms);

CREATE TABLE IF NOT EXISTS everlog_queue_turn (
    jid  INTEGER NOT NULL,
    grp  TEXT NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY (jid, grp)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS everlog_queue_turn_age ON everlog_queue_turn (jid, turn);
