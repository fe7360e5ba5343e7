"""Benchmarks: programs, not tests. `python -m bench` measures Everlog beside what one would use instead."""
