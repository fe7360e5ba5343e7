"""What both SQLite files share."""

import multiprocessing
from pathlib import Path

from everlog.sqlite.connection import MEMORY, connect

OPENERS = 4
ROUNDS = 40


def open_at_once(folder: Path, barrier, failures) -> None:
    for number in range(ROUNDS):
        barrier.wait()
        try:
            connect(folder / f"{number}.db").close()
        except Exception as error:
            failures.put(repr(error))
    failures.put(None)


def test_a_new_file_may_be_opened_by_several_processes_at_once(tmp_path):
    """SQLite answers the losers of the switch to WAL mode with "locked" at once, whatever its busy timeout says."""
    context = multiprocessing.get_context("spawn")
    barrier, failures = context.Barrier(OPENERS), context.Queue()
    processes = [context.Process(target=open_at_once, args=(tmp_path, barrier, failures)) for _ in range(OPENERS)]
    for process in processes:
        process.start()
    found = []
    for _ in processes:
        while (failure := failures.get(timeout=60)) is not None:
            found.append(failure)
    for process in processes:
        process.join()
    assert found == []


def test_what_lives_in_memory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    connect(MEMORY).close()
    assert not list(tmp_path.iterdir())
