"""The journal's protocol under random schedules: real fold, pipeline, reader and writer on doubles of log and store.

`scheduler` runs plain coroutines step by step, `tables` and `doubles` are a store with Cassandra's semantics and a
log in memory, `oracle` says what a journal must be, `processes` are those who take part, `simulation` is one run.
"""
