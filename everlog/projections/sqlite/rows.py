"""Between our values and the rows; each function runs inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from everlog.errors import InvalidOffset, OwnershipLost
from everlog.projections.claims import parts_of, wanted_of
from everlog.projections.offsets import Offset, Single, decode, entries, is_mergeable, mirrored
from everlog.projections.port import Desired, ProjectionDeadLetter, decode_skips, encode_skips
from everlog.projections.projection_id import ProjectionId, partition_of_key
from everlog.projections.save_window import OffsetProgress
from everlog.runtime.lease import Lease
from everlog.runtime.statements import load_statements

SQL = load_statements("everlog.projections.sqlite")

SqliteOffsetRow = tuple[Any, ...]
"""entry, key, offset, manifest, mergeable, updated"""


def with_mirror(own: Sequence[SqliteOffsetRow], mirror: Sequence[SqliteOffsetRow]) -> list[SqliteOffsetRow]:
    """Our rows, and for keys without one those that Akka left; for a map, only entries of a map."""
    entries, maps = {row[0] for row in own}, any(row[4] for row in own)
    return [*own, *(row for row in mirror if row[0] not in entries and (row[4] or not maps))]


def offset_from(rows: Sequence[SqliteOffsetRow], key: str, *, own: bool) -> Offset | None:
    """The offset of a key: its own row, or the map of all entries of the name; with `own`, of those it wrote."""
    if rows and all(row[4] for row in rows):
        found: dict[str, Single] = {
            row[0]: decode(row[2], row[3]) for row in rows if not own or row[1] in (key, row[0])
        }
        return found or None
    for row in rows:
        if row[0] == key and not row[4]:
            return decode(row[2], row[3])
    return None


def wanted(row: Sequence[Any]) -> Desired:
    """A row of `projection_management` without its key."""
    return Desired(bool(row[0]), decode_skips(row[1]), row[2])


def check_owner(connection: sqlite3.Connection, lease: Lease) -> None:
    """The transaction holds the write lock: the owner of the key stays its owner until the commit."""
    row = connection.execute(SQL["lease"], (lease.name, lease.key)).fetchone()
    if row is None or row[0] != lease.owner or row[1] != lease.epoch:
        raise OwnershipLost(f"{lease.name}-{lease.key}", lease.epoch)


def save_progress(connection: sqlite3.Connection, lease: Lease, progress: OffsetProgress, now_ms: int) -> None:
    """The offset, its mirror, and the positions."""
    if progress.offset is not None:
        if is_mergeable(progress.offset):
            check_claims(connection, lease, entries(lease.key, progress.offset))
        _write_entries(connection, lease.name, lease.key, lease.epoch, progress.offset, now_ms)
    if progress.positions:
        values = [(lease.name, lease.key, *place, offset) for place, offset in progress.positions.items()]
        connection.executemany(SQL["save_position"], values)


def check_claims(connection: sqlite3.Connection, lease: Lease, parts: Iterable[str]) -> None:
    """The parts have not been claimed by a later owner, as if the source were divided anew."""
    for entry in parts:
        if connection.execute(SQL["claimed_later"], (lease.name, entry, lease.epoch)).fetchone() is not None:
            raise OwnershipLost(f"{lease.name}-{lease.key}", lease.epoch)


def claim(connection: sqlite3.Connection, lease: Lease, parts: Sequence[str], now_ms: int) -> None:
    """Parts of a source with all that belongs to them."""
    check_claims(connection, lease, parts)
    name, key = lease.name, lease.key
    found = {row[0]: row[1] for row in connection.execute(SQL["offsets"], (name,)) if row[4]}
    found |= {entry: owner for entry, owner, _ in connection.execute(SQL["claims"], (name,))}
    owners = {found[entry] for entry in parts if entry in found}
    if owners - {key}:
        desired = {one: wanted(row) for one, *row in connection.execute(SQL["desired"], (name,))}
        after = wanted_of(key, owners, desired, parts)
        if after != desired.get(key, Desired()):
            place = (name, partition_of_key(key), key)
            connection.execute(SQL["want"], (*place, after.paused, now_ms, encode_skips(after.skips)))
        for owner in owners - {key}:
            for (offset,) in connection.execute(SQL["letters_of"], (name, owner)).fetchall():
                if parts_of(offset) <= set(parts):
                    connection.execute(SQL["move_letter"], (name, owner, key, offset))
    for entry in parts:
        connection.execute(SQL["claim"], (name, entry, key, lease.epoch))
        connection.execute(SQL["claim_offset"], (name, entry, key))


def write_offset(
    connection: sqlite3.Connection,
    projection: ProjectionId,
    epoch: int,
    offset: Offset | None,
    rows: Sequence[SqliteOffsetRow],
    now_ms: int,
) -> None:
    """Replace an offset as a whole: entries that the new one lacks go."""
    name, key = projection.name, projection.key
    mine = [row for row in rows if row[1] == key or (row[4] and row[1] == row[0])]
    if offset is not None and mine and is_mergeable(offset) != bool(mine[0][4]):
        kind = "a map of offsets" if mine[0][4] else "a single offset"
        raise InvalidOffset(f"{projection} has {kind}, so {offset!r} does not fit")
    kept = set() if offset is None else set(entries(key, offset))
    for row in mine:
        if row[0] not in kept:
            connection.execute(SQL["clear"], (name, row[0]))
            connection.execute(SQL["clear_mirror"], (name, partition_of_key(row[0]), row[0]))
    if offset is not None:
        _write_entries(connection, name, key, epoch, offset, now_ms)


def _write_entries(
    connection: sqlite3.Connection, name: str, key: str, epoch: int, offset: Offset, now_ms: int
) -> None:
    mergeable, rows = is_mergeable(offset), entries(key, offset)
    connection.executemany(
        SQL["save"], [(name, entry, key, epoch, *encoded, mergeable, now_ms) for entry, encoded in rows.items()]
    )
    connection.executemany(
        SQL["mirror"],
        [(name, partition_of_key(entry), entry, *mirrored(one), now_ms, mergeable) for entry, one in rows.items()],
    )


def bury(connection: sqlite3.Connection, letters: Sequence[ProjectionDeadLetter]) -> None:
    for one in letters:
        facts = (one.offset, one.manifest, one.cause, one.attempts, one.payload, one.created_ms)
        connection.execute(SQL["bury"], (one.name, one.key, *facts))
