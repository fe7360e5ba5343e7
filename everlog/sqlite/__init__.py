"""SQLite as plumbing: connections, transactions that callers share, versioned tables."""
