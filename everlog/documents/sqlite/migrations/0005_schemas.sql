-- Schemas of documents: the text is exact JSON, the version is new whenever it is put.
CREATE TABLE schema_def (
    schema_id    TEXT PRIMARY KEY,
    template_uri TEXT NOT NULL,
    definition   TEXT NOT NULL,
    version      TEXT NOT NULL,
    modified_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- The newest check of each schema; the beat grows with every change.
CREATE TABLE schema_check (
    schema_id TEXT PRIMARY KEY,
    beat      INTEGER NOT NULL,
    body      TEXT NOT NULL
) WITHOUT ROWID;
