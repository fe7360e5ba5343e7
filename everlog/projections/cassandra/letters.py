"""Dead letters on Cassandra: plain rows, each under its own offset, so that writing one again does no harm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.projections.port import ProjectionDeadLetter
from everlog.runtime.clock import Clock


class DeadLetterTable:
    """The table `projection_dead_letter`. `nr` keeps the order in which they were first buried."""

    def __init__(self, session: Session, cql: Mapping[str, str], clock: Clock) -> None:
        self._session = session
        self._cql = cql
        self._clock = clock
        self._last = 0

    async def _numbered(self, name: str, key: str) -> list[tuple[int, ProjectionDeadLetter]]:
        rows = await self._session.fetch(self._cql["letters"], name, key)
        fields = ProjectionDeadLetter.__struct_fields__
        found = [
            (row[9], ProjectionDeadLetter(**{**dict(zip(fields, row[:9], strict=True)), "requested": bool(row[8])}))
            for row in rows
        ]
        return sorted(found, key=lambda one: one[0])

    async def list(self, name: str, key: str) -> list[ProjectionDeadLetter]:
        return [letter for _, letter in await self._numbered(name, key)]

    async def _put(self, letter: ProjectionDeadLetter, nr: int) -> None:
        values = (letter.name, letter.key, letter.offset, letter.manifest, letter.cause, letter.attempts)
        times = (letter.payload, timestamp(letter.created_ms), letter.requested, nr)
        await self._session.write(self._cql["put_letter"], *values, *times)

    async def bury(self, letters: Sequence[ProjectionDeadLetter]) -> None:
        for letter in letters:
            known = {one.offset: nr for nr, one in await self._numbered(letter.name, letter.key)}
            self._last = max(self._last + 1, self._clock.now_ms() * 1000)
            await self._put(letter, known.get(letter.offset, self._last))

    async def request(self, name: str, key: str, offset: str | None) -> int:
        count = 0
        for nr, letter in await self._numbered(name, key):
            if letter.payload is not None and offset in (None, letter.offset):
                await self._put(msgspec.structs.replace(letter, requested=True), nr)
                count += 1
        return count

    async def answer(self, letter: ProjectionDeadLetter, cause: str | None) -> None:
        if cause is None:
            await self._session.write(self._cql["drop_letter"], letter.name, letter.key, letter.offset)
            return
        for nr, found in await self._numbered(letter.name, letter.key):
            if found.offset == letter.offset:
                again = msgspec.structs.replace(found, requested=False, attempts=found.attempts + 1, cause=cause)
                await self._put(again, nr)

    async def move(self, name: str, key: str, to: str, wanted: Callable[[str], bool]) -> None:
        """Letters of these offsets to another key; each is there before it is gone here."""
        for nr, letter in await self._numbered(name, key):
            if wanted(letter.offset):
                await self._put(msgspec.structs.replace(letter, key=to), nr)
                await self._session.write(self._cql["drop_letter"], name, key, letter.offset)

    async def drop(self, name: str, key: str, offset: str | None) -> int:
        found = [one for one in await self.list(name, key) if offset in (None, one.offset)]
        for letter in found:
            await self._session.write(self._cql["drop_letter"], name, key, letter.offset)
        return len(found)
