"""Settings that are pinned: the first value that a key gets, it keeps."""

from __future__ import annotations

from collections.abc import Mapping

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.errors import Unreachable

MAX_TRIES = 20


async def pin_setting(session: Session, cql: Mapping[str, str], key: str, value: str, now_ms: int) -> str:
    """What is pinned under this key; pinned now, with this value, if nothing was."""
    for _ in range(MAX_TRIES):
        rows = await session.fetch(cql["setting"], key, serial=True)
        if rows:
            return str(rows[0][0])
        await session.write_if(cql["pin"], key, value, timestamp(now_ms))
    raise Unreachable(f"Cassandra does not say whether {key} is pinned: try again")
