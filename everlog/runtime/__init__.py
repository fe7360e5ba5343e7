"""What every running part needs: clocks, retries, leases, locks, services, statement files."""
