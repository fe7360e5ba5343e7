-- Which key has which part of a source that can be divided anew, and since which epoch.
CREATE TABLE projection_claim (
    name  TEXT NOT NULL,
    entry TEXT NOT NULL,
    key   TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (name, entry)
) WITHOUT ROWID;
