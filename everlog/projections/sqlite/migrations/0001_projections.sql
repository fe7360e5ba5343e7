-- The authority on offsets. A map of offsets has one row per entry; otherwise `entry` is the key itself.
CREATE TABLE projection_offset (
    name      TEXT NOT NULL,
    entry     TEXT NOT NULL,
    key       TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    saves     INTEGER NOT NULL,
    offset    TEXT NOT NULL,
    manifest  TEXT NOT NULL,
    mergeable INTEGER NOT NULL,
    updated   INTEGER NOT NULL,
    PRIMARY KEY (name, entry)
) WITHOUT ROWID;

-- Up to where in the log everything is done, filtered events included.
CREATE TABLE projection_position (
    name      TEXT NOT NULL,
    key       TEXT NOT NULL,
    topic     TEXT NOT NULL,
    partition INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    PRIMARY KEY (name, key, topic, partition)
) WITHOUT ROWID;

-- Who works on which key. Rows stay, so that an epoch never comes twice.
CREATE TABLE projection_lease (
    name   TEXT NOT NULL,
    key    TEXT NOT NULL,
    owner  TEXT,
    epoch  INTEGER NOT NULL,
    beat   INTEGER NOT NULL,
    report TEXT NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;

CREATE TABLE projection_instance (
    name  TEXT NOT NULL,
    owner TEXT NOT NULL,
    beat  INTEGER NOT NULL,
    PRIMARY KEY (name, owner)
) WITHOUT ROWID;

CREATE TABLE projection_dead_letter (
    name      TEXT NOT NULL,
    key       TEXT NOT NULL,
    offset    TEXT NOT NULL,
    manifest  TEXT NOT NULL,
    cause     TEXT NOT NULL,
    attempts  INTEGER NOT NULL,
    payload   BLOB,
    created   INTEGER NOT NULL,
    requested INTEGER NOT NULL DEFAULT 0,
    nr        INTEGER NOT NULL,
    PRIMARY KEY (name, key, offset)
) WITHOUT ROWID;

-- The two tables of Akka and Pekko Projection, with what Everlog adds at their end.
CREATE TABLE offset_store (
    projection_name TEXT NOT NULL,
    partition       INTEGER NOT NULL,
    projection_key  TEXT NOT NULL,
    offset          TEXT,
    manifest        TEXT,
    last_updated    INTEGER,
    mergeable       INTEGER,
    PRIMARY KEY (projection_name, partition, projection_key)
) WITHOUT ROWID;

CREATE TABLE projection_management (
    projection_name TEXT NOT NULL,
    partition       INTEGER NOT NULL,
    projection_key  TEXT NOT NULL,
    paused          INTEGER,
    last_updated    INTEGER,
    skip            TEXT,
    version         INTEGER,
    PRIMARY KEY (projection_name, partition, projection_key)
) WITHOUT ROWID;
