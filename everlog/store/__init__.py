"""The store: heads, event rows, tag rows, snapshots and pointers, in a SQLite file or on Cassandra."""
