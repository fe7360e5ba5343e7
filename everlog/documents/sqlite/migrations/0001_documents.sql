-- What is known about a document or a collection as a whole: the "static row" of its partition.
CREATE TABLE head (
    document_uri TEXT PRIMARY KEY,
    revision     INTEGER NOT NULL,
    is_deleted   INTEGER NOT NULL,
    count        INTEGER NOT NULL,
    last_id      TEXT,
    messages     TEXT NOT NULL,
    is_view      INTEGER NOT NULL
) WITHOUT ROWID;

-- Bodies: of a document under the empty item id, of elements under their own.
CREATE TABLE content (
    document_uri TEXT NOT NULL,
    item_id      TEXT NOT NULL,
    body         TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    modified_at  INTEGER NOT NULL,
    PRIMARY KEY (document_uri, item_id)
);

-- One row per write: the event that must go out.
CREATE TABLE outbox (
    document_uri TEXT NOT NULL,
    uuid         TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    item_id      TEXT NOT NULL,
    quantum      INTEGER NOT NULL,
    event        TEXT NOT NULL,
    old_body     TEXT,
    accepted     INTEGER NOT NULL,
    completed_at INTEGER,
    PRIMARY KEY (document_uri, uuid)
);
CREATE INDEX outbox_incomplete ON outbox (document_uri, revision) WHERE completed_at IS NULL;
CREATE INDEX outbox_quantum ON outbox (quantum) WHERE completed_at IS NULL;
CREATE INDEX outbox_completed ON outbox (completed_at) WHERE completed_at IS NOT NULL;

CREATE TABLE index_def (
    document_uri  TEXT NOT NULL,
    index_id      TEXT NOT NULL,
    sort_by       TEXT NOT NULL,
    filter_by     TEXT,
    status        INTEGER NOT NULL,
    definition_id TEXT NOT NULL,
    built_to      TEXT NOT NULL,
    revision      INTEGER NOT NULL,
    count         INTEGER NOT NULL,
    reason        TEXT,
    since         INTEGER NOT NULL,
    PRIMARY KEY (document_uri, index_id)
) WITHOUT ROWID;
CREATE INDEX index_def_pending ON index_def (status) WHERE status IN (0, 1);

-- One entry per element that an index holds; by element to change it, by key to read it.
CREATE TABLE index_entry (
    definition_id TEXT NOT NULL,
    item_id       TEXT NOT NULL,
    sort_key      BLOB NOT NULL,
    body          TEXT NOT NULL,
    PRIMARY KEY (definition_id, item_id)
);
CREATE UNIQUE INDEX index_entry_key ON index_entry (definition_id, sort_key);

CREATE TABLE view_def (
    document_uri TEXT PRIMARY KEY,
    template_uri TEXT NOT NULL,
    filter       TEXT
) WITHOUT ROWID;

CREATE TABLE template_index_def (
    index_id     TEXT PRIMARY KEY,
    template_uri TEXT NOT NULL,
    definition   TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE checkpoint (
    name         TEXT PRIMARY KEY,
    last_quantum INTEGER NOT NULL
) WITHOUT ROWID;
