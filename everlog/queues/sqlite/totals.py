"""What all processes on a folder did with its queues, by kind. Each adds what it did to the main file, now and then.

It is for charts, not for decisions: a process that is killed takes the counts of its last seconds with it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter

from everlog.queues.sqlite.catalog import SQL, MainFile

SAVE_MS = 5000


class QueueTotals:
    """What this process did and has not added yet. Its commits come from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, Counter[str]] = {}
        self._since_ms: int | None = None

    def add(self, jid: int, counted: Counter[str], now: int) -> None:
        with self._lock:
            self._pending.setdefault(jid, Counter()).update(counted)
            if self._since_ms is None:
                self._since_ms = now

    def save(self, main: MainFile, now: int | None = None) -> None:
        """Add it to the main file if that is due; without `now` it is. If it cannot be done now, it is later."""
        with self._lock:
            if self._since_ms is None or (now is not None and 0 <= now - self._since_ms < SAVE_MS):
                return
            pending, self._pending, self._since_ms = self._pending, {}, None
        try:
            _write(main, pending)
        except sqlite3.Error:
            for jid, counted in pending.items():
                self.add(jid, counted, now or 0)

    def of(self, main: MainFile, jid: int) -> Counter[str]:
        """What is known of all processes, with what this one has not added yet."""
        found = Counter(dict(main.connection.execute(SQL["totals"], (jid,)).fetchall()))
        with self._lock:
            found.update(self._pending.get(jid, Counter()))
        return found


def _write(main: MainFile, pending: dict[int, Counter[str]]) -> None:
    rows = [(kind, number, jid) for jid, counted in pending.items() for kind, number in counted.items() if number]
    main.connection.execute("BEGIN IMMEDIATE")
    try:
        main.connection.executemany(SQL["add_totals"], rows)
        main.connection.execute("COMMIT")
    except BaseException:
        if main.connection.in_transaction:
            main.connection.execute("ROLLBACK")
        raise
