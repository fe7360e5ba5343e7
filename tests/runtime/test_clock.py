"""Fresh ids, and what a process knows of itself after a fork."""

from __future__ import annotations

import os
import uuid

from everlog.runtime.clock import SystemClock
from everlog.runtime.process import PROCESS


def test_ids_are_random_uuids():
    clock = SystemClock()
    made = [clock.new_id() for _ in range(2000)]
    parsed = [uuid.UUID(one) for one in made]
    assert [str(one) for one in parsed] == made
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
    assert len(set(made)) == len(made)
    assert {one[19] for one in made} == set("89ab")


def test_a_fork_knows_that_it_is_another_process():
    assert PROCESS.pid == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if PROCESS.pid == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert PROCESS.pid == os.getpid()
