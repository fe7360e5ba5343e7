"""Cassandra as plumbing: sessions, prepared statements, retries, versioned tables."""
