"""What the tests of copied and retired topics share: ways to break a topic of the embedded log, what must be kept."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from everlog.api import Everlog
from everlog.core.head import exists
from everlog.journal.copy import Copier, CopyOutcome, Original
from everlog.journal.journal import Journal, LocalJournal


def break_log(log: Everlog, statement: str) -> None:
    """Do something to the log that nobody should."""
    with closing(sqlite3.connect(log.config.folder / "log.db", isolation_level=None)) as connection:
        connection.execute(statement)


def make_again(log: Everlog, topic: str) -> None:
    """The topic has another id, as after a deletion and a new beginning."""
    break_log(log, f"UPDATE topic SET id = 'another' WHERE name = 'journal-{topic}'")


def remove(log: Everlog, topic: str) -> None:
    """The topic is gone from the log."""
    number = f"(SELECT nr FROM topic WHERE name = 'journal-{topic}')"
    for table in ("record", "partition"):
        break_log(log, f"DELETE FROM {table} WHERE topic = {number}")
    break_log(log, f"DELETE FROM topic WHERE name = 'journal-{topic}'")


def empty(log: Everlog, topic: str) -> None:
    """The topic is the same and ends at its beginning: a backup of another day."""
    break_log(log, f"DELETE FROM record WHERE topic = (SELECT nr FROM topic WHERE name = 'journal-{topic}')")


def cut(log: Everlog, topic: str, start: int) -> None:
    """What is below this offset is gone, replicated or not."""
    where = f"topic = (SELECT nr FROM topic WHERE name = 'journal-{topic}')"
    break_log(log, f"DELETE FROM record WHERE {where} AND offset < {start}")
    break_log(log, f"UPDATE partition SET start_offset = {start} WHERE {where}")


async def copy_all(log: Everlog, source: str, target: str, **options: Any) -> dict[str, CopyOutcome]:
    """What the job does, in this process."""
    original = await Original.find(log.parts, source)
    copier = Copier(original, LocalJournal(target, log.parts), **options)
    found = {}
    async for page in original.ids():
        for journal_id in page:
            outcome = await copier.copy(journal_id)
            if outcome is not None:
                found[journal_id] = outcome
    return found


async def state_of(journal: Journal, journal_id: str) -> dict[str, Any] | None:
    """All that readers see of a journal, apart from where it is."""
    head = await journal.head(journal_id)
    if head is None or not exists(head):
        return None
    events = [
        {
            "seq_nr": event.seq_nr,
            "time": event.timestamp,
            "type": event.payload_type,
            "payload": event.payload,
            "tags": event.tags,
            "metadata": event.metadata,
            "headers": dict(event.headers),
            "by": (event.origin, event.version, event.append_id),
        }
        async for event in journal.read(journal_id)
    ]
    snapshots = [(one.seq_nr, one.timestamp, one.payload) for one in await journal.snapshots.list(journal_id)]
    ends = (head.seq_nr, head.delete_to, head.expire_after, head.expire_on, head.expire_at)
    return {"ends": ends, "events": events, "snapshots": snapshots}


async def states_of(log: Everlog, topic: str) -> dict[str, dict[str, Any]]:
    """The same of all journals of a topic."""
    journal = LocalJournal(topic, log.parts)
    ids = [journal_id async for journal_id in journal.keys()]  # noqa: SIM118 - no dictionary
    found = {journal_id: await state_of(journal, journal_id) for journal_id in ids}
    return {journal_id: state for journal_id, state in found.items() if state is not None}
