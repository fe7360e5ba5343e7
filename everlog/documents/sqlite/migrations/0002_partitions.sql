-- Recovery keeps its place per partition of the outbox, as on a cluster, where nodes share the partitions.
DROP TABLE checkpoint;
CREATE TABLE checkpoint (
    partition    INTEGER PRIMARY KEY,
    last_quantum INTEGER NOT NULL
);

-- Whether a view shows what was there before it.
ALTER TABLE view_def ADD COLUMN filled INTEGER NOT NULL DEFAULT 0;
