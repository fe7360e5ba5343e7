-- Which copies of a view there are, as JSON.
CREATE TABLE projection_copy (
    name   TEXT NOT NULL PRIMARY KEY,
    copies TEXT NOT NULL
) WITHOUT ROWID;
