-- The last number that an event of each tag got, as JSON.
ALTER TABLE metajournal ADD COLUMN tag_seq TEXT;

-- The place of a tagged event in the order of all tagged events, a time-UUID.
ALTER TABLE journal ADD COLUMN ordering TEXT;

-- The order of tagged events: each plan once, without a gap in numbers. The newest always stays.
CREATE TABLE tag_plan (
    nr   INTEGER PRIMARY KEY,
    plan TEXT NOT NULL
);

-- How far the views are complete: one row.
CREATE TABLE tag_watermark (
    id        INTEGER PRIMARY KEY CHECK (id = 0),
    nr        INTEGER NOT NULL,
    tick      INTEGER NOT NULL,
    positions TEXT NOT NULL
);

-- Which buckets of a tag exist. A shard of -1: the tag has none there.
CREATE TABLE tag_buckets (
    tag_name   TEXT NOT NULL,
    timebucket INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    shard      INTEGER NOT NULL,
    PRIMARY KEY (tag_name, timebucket, size, shard)
) WITHOUT ROWID;

-- One row per event and tag, in order: tick and rank are the parts of the event's time-UUID.
CREATE TABLE tag_views (
    tag_name     TEXT NOT NULL,
    timebucket   INTEGER NOT NULL,
    tick         INTEGER NOT NULL,
    rank         INTEGER NOT NULL,
    topic        TEXT NOT NULL,
    id           TEXT NOT NULL,
    tag_seq_nr   INTEGER NOT NULL,
    seq_nr       INTEGER NOT NULL,
    timestamp    INTEGER NOT NULL,
    partition    INTEGER NOT NULL,
    offset       INTEGER NOT NULL,
    payload_type TEXT,
    payload_txt  TEXT,
    payload_bin  BLOB,
    tags         TEXT NOT NULL DEFAULT '',
    origin       TEXT,
    version      TEXT,
    record_id    TEXT,
    append_id    TEXT,
    metadata     TEXT NOT NULL DEFAULT '',
    headers      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (tag_name, timebucket, tick, rank)
) WITHOUT ROWID;

-- Per journal and tag: its last event in the view, and the lowest number that was not removed.
CREATE TABLE tag_write_progress (
    topic      TEXT NOT NULL,
    id         TEXT NOT NULL,
    tag        TEXT NOT NULL,
    seq_nr     INTEGER NOT NULL,
    tag_seq_nr INTEGER NOT NULL,
    tick       INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    lowest     INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (topic, id, tag)
) WITHOUT ROWID;

CREATE INDEX tag_write_progress_tag ON tag_write_progress (tag);
