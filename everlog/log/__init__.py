"""The log: ordered records by topic and partition, in a SQLite file or on Kafka."""
