"""Labelled points at which a test lets the process die, as if the machine had lost power there.

`EVERLOG_FAILPOINT=apply.rows` kills at that point, `apply.rows:3` at the third time it is reached. The whole
pipeline dies: this process and, inside a Spark worker, its ancestors up to the process named by
`EVERLOG_FAILPOINT_ROOT`; without that, this process alone. `EVERLOG_FAILPOINT_ONCE` names a file to which each process
that dies adds a byte: `apply.rows:1,2` kills one process at the first time, the next one at its second, and no more.

`EVERLOG_PAUSEPOINT=documents.decided:FILE` makes a task wait at that point as long as the file exists and the task's
key begins with what is in it: a task that takes long. It adds its key to FILE.held first, one a line.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

VARIABLE = "EVERLOG_FAILPOINT"
ROOT_VARIABLE = "EVERLOG_FAILPOINT_ROOT"
ONCE_VARIABLE = "EVERLOG_FAILPOINT_ONCE"
PAUSE_VARIABLE = "EVERLOG_PAUSEPOINT"
PAUSE_S = 0.01
# Looked up once: some of the points are on paths that are taken for every single event.
_FAIL_AT = os.environ.get(VARIABLE)
_PAUSE_AT = os.environ.get(PAUSE_VARIABLE)

POINTS = (
    "cycle.started",
    "cycle.planned",
    "apply.loaded",
    "apply.rows",
    "apply.heads",
    "apply.garbage",
    "apply.done",
    "cycle.applied",
    "cycle.published",
    "cycle.watermark",
)
# Where a write of a document, or its completion, may be cut off.
DOCUMENT_POINTS = (
    "documents.decided",
    "documents.outboxed",
    "documents.accepted",
    "documents.indexed",
    "documents.published",
    "documents.completed",
)
# Where an expiry may be cut off: before its deletion and after it.
EXPIRY_POINTS = ("documents.expiring", "documents.expired")
# Where a copy into a view may be cut off: an element is shown, or noted as one that cannot be.
COPY_INTO_VIEW_POINTS = ("documents.shown", "documents.unshown")
# Where the rows of a view in Cassandra, whose partitions are written one by one, may be cut off from their offset.
VIEW_POINTS = ("view.partition", "view.rows")
# Where the first run of a projection may be cut off: its view has a version, and nothing else yet.
FIRST_RUN_POINT = "projection.recorded"
# Where the rebuild of a view, a switch to it, or their cleaning up may be cut off.
REBUILD_POINTS = (
    "rebuild.begun",
    "rebuild.tables",
    "rebuild.filled",
    "switch.decided",
    "switch.moved",
    "abort.moved",
    "clean.tables",
)

# Where a copy of journals into another topic may be cut off: before a journal, and before a record of it.
COPY_POINTS = ("copy.journal", "copy.record")

_hits: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Die here if the environment says so."""
    if not _FAIL_AT:
        return
    point, _, count = _FAIL_AT.partition(":")
    if point == name:
        _hits[name] = _hits.get(name, 0) + 1
        if _is_time([int(each) for each in (count or "1").split(",")], _hits[name]):
            _die()


async def pausepoint(name: str, key: str) -> None:
    """Wait here if the environment says so."""
    if not _PAUSE_AT:
        return
    point, _, file = _PAUSE_AT.partition(":")
    if point != name or not _holds(Path(file), key):
        return
    _tell(Path(f"{file}.held"), key)
    while _holds(Path(file), key):  # noqa: ASYNC110 - another process removes the file
        await asyncio.sleep(PAUSE_S)


def _tell(file: Path, key: str) -> None:
    with file.open("a") as held:
        held.write(f"{key}\n")


def _holds(file: Path, key: str) -> bool:
    try:
        return key.startswith(file.read_text())
    except FileNotFoundError:
        return False


def _is_time(counts: list[int], hits: int) -> bool:
    """Whether this process dies now, in its turn."""
    once = os.environ.get(ONCE_VARIABLE)
    if once is None:
        return hits >= counts[0]
    deaths = Path(once).stat().st_size if Path(once).exists() else 0
    if deaths >= len(counts) or hits < counts[deaths]:
        return False
    with Path(once).open("ab") as file:
        file.write(b".")
    return True


def _die() -> None:
    root = int(os.environ.get(ROOT_VARIABLE, "0"))
    pid, victims = os.getpid(), [os.getpid()]
    while root and pid not in (root, 0, 1):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        victims.append(pid)
    if victims[-1] == root:
        for victim in reversed(victims[1:]):
            os.kill(victim, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
