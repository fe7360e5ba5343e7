"""Benchmarks on a real Kafka, Spark and Cassandra: `python -m bench.cluster`."""
