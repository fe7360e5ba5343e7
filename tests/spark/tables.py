"""The store's tables as plain data, to compare one run with another."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from everlog.store.sqlite.store import FILE

TABLES = {
    "metajournal": "topic, segment, id",
    "journal": "id, topic, segment, seq_nr, timestamp",
    "quarantine": "topic, partition, offset",
    "rejected": "topic, partition, offset",
    "snapshot_buffer": "id, topic, buffer_idx",
}


def tables(folder: str | Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything a fold of the log determines. `garbage` is left out: it may or may not be carried out yet."""
    connection = sqlite3.connect(Path(folder) / FILE)
    connection.row_factory = sqlite3.Row
    try:
        found = {
            name: [
                tuple(row[column] for column in row.keys() if column != "garbage")  # noqa: SIM118
                for row in connection.execute(f"SELECT * FROM {name} ORDER BY {order}")
            ]
            for name, order in TABLES.items()
        }
        found["pointer2"] = [
            tuple(row) for row in connection.execute("SELECT topic, partition, offset FROM pointer2 ORDER BY 1, 2")
        ]
    finally:
        connection.close()
    return found
