"""Benchmarks: programs, not tests. `python -m bench` measures Everlog beside what a user would take instead."""
