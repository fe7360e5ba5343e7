"""A real Kafka and a real Cassandra on the local machine: jars, processes, ports, certificates."""
