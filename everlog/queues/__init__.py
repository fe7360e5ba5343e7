"""Work queues: jobs by key, with leases, retries, schedules and dead letters."""
