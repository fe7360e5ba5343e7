"""Journals: append with a verdict, read the store and the tail as one, snapshots, expiry, quarantine, copies."""
