-- What views cannot show: set aside with the reason, so that it holds nothing up.
CREATE TABLE view_unshown (
    document_uri TEXT NOT NULL,
    source       TEXT NOT NULL,
    code         TEXT NOT NULL,
    reason       TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    since        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    PRIMARY KEY (document_uri, source)
) WITHOUT ROWID;

-- Not null: each element of the view is to be compared with its source. The id tells one such request from the next.
ALTER TABLE view_def ADD COLUMN recheck TEXT;
