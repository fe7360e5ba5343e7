"""Tags, projections and the status of a server, for `connect("http://…")`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from everlog.client import Everlog
from everlog.config import Config
from everlog.core.events import EventRecord
from everlog.core.tag_names import SLICES, check_tag
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.errors import EverlogError, InvalidRange, StorageFailed, Unreachable
from everlog.journal.journal import Journal
from everlog.pipeline.status import Status
from everlog.projections.copies import Copies
from everlog.projections.offsets import Offset
from everlog.projections.projections import Projections, ProjectionStatus
from everlog.projections.source import Lag
from everlog.remote.connection import Wire, refusal
from everlog.remote.journal import RemoteJournal
from everlog.runtime.clock import Clock
from everlog.server.requests import segment
from everlog.server.routes.projection_copies import CopiesBody, CopyCommand, copies_of
from everlog.server.routes.projections import InstanceBody, ProjectionBody, ProjectionsBody
from everlog.tags.tag import BEGINNING, Tag, TaggedEvent, TagInfo, TagOffset, parse_start
from everlog.wire.events import TaggedBody, tagged_of

PAGE = 500
TRIES = 5
FIRST_PAUSE = 0.1
_decode_tagged = msgspec.json.Decoder(TaggedBody).decode


class RemoteLog(Everlog):
    """What a server has besides documents and queues."""

    def __init__(self, config: Config, wire: Wire, clock: Clock) -> None:
        super().__init__(config, clock=clock)
        self._wire = wire

    def journal(self, topic: str) -> Journal:
        journal = self._journals.get(topic)
        if journal is None:
            journal = self._keep(topic, RemoteJournal(topic, self._wire, self._clock))
        return journal

    def tag(self, name: str) -> Tag:
        return RemoteTag(self._wire, f"/tags/{segment(check_tag(name))}", name)

    def slices(self, first: int = 0, last: int = SLICES - 1) -> Tag:
        if not 0 <= first <= last < SLICES:
            raise InvalidRange(f"slices go from 0 to {SLICES - 1}, the first must not be above the last")
        return RemoteTag(self._wire, f"/slices/{first}/{last}", f"slices {first} to {last}")

    async def tags(self, *, token: Position | str | None = None) -> list[TagInfo]:
        params = {"after": None if token is None else str(token)}
        found = (await self._wire.send("GET", "/tags", params=params)).json()["tags"]
        return [
            TagInfo(
                one["tag"],
                one["events"],
                one["journals"],
                UUID(one["last_offset"]),
                datetime.fromisoformat(one["last_time"]),
            )
            for one in found
        ]

    def pages_by_persistence_id(
        self,
        topic: str,
        journal_id: str,
        from_seq: int = 0,
        to_seq: int = MAX_SEQ_NR,
        *,
        live: bool = False,
        gap_free: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        if live:
            raise _only_tags_are_followed()
        return super().pages_by_persistence_id(topic, journal_id, from_seq, to_seq, gap_free=gap_free)

    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        if live:
            raise _only_tags_are_followed()
        return super().persistence_ids(topic)

    async def topics(self) -> list[str]:
        found: list[str] = (await self._wire.send("GET", "/journals")).json()["topics"]
        return found

    async def status(self, *, after: Position | str | None = None) -> Status:
        params = {"after": None if after is None else str(after)}
        return msgspec.json.decode((await self._wire.send("GET", "/status", params=params)).content, type=Status)

    @property
    def projections(self) -> Projections:
        return RemoteProjections(self._wire)


def _only_tags_are_followed() -> StorageFailed:
    return StorageFailed("a server follows tags, not single journals: give the events a tag and use log.tag(…).live()")


class RemoteTag(Tag):
    """The events of a tag at a server."""

    def __init__(self, wire: Wire, url: str, name: str) -> None:
        self.names = [name]
        self._wire = wire
        self._url = url

    def current_pages(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent], None]:
        return self._current_pages(_where(after, since, token))

    async def _current_pages(self, params: dict[str, str | None]) -> AsyncGenerator[list[TaggedEvent], None]:
        page: list[TaggedEvent] = []
        async with aclosing(self._wire.lines(self._url, params)) as lines:
            async for line in lines:
                page.append(tagged_of(_decode_tagged(line)))
                if len(page) == PAGE:
                    yield page
                    page = []
        if page:
            yield page

    def live_pages(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent], None]:
        return self._live_pages(_where(after, since, token))

    async def _live_pages(self, params: dict[str, str | None]) -> AsyncGenerator[list[TaggedEvent], None]:
        """A stream that is cut goes on behind the last frame; if nothing comes of that, the last error is raised."""
        last: str | None = None
        tries = 0
        while True:
            try:
                async with aclosing(self._frames(params, last)) as frames:
                    async for place, event in frames:
                        tries, last = 0 if place != last else tries, place
                        if event is not None:
                            yield [event]
            except EverlogError as error:
                if tries == TRIES or not error.retriable:
                    raise
            if tries == TRIES:
                raise Unreachable(f"the server ends every stream of {self._url} at once")
            await asyncio.sleep(FIRST_PAUSE * 2**tries)
            tries += 1

    async def _frames(
        self, params: dict[str, str | None], last: str | None
    ) -> AsyncGenerator[tuple[str, TaggedEvent | None], None]:
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": last})
        kind, place = "", ""
        async with aclosing(self._wire.stream(self._url, params, headers)) as lines:
            async for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    place = value
                elif name == "event":
                    kind = value
                elif name == "data" and kind == "failed":
                    raise refusal(500, msgspec.json.decode(value))
                elif name == "data":
                    yield place, tagged_of(_decode_tagged(value)) if kind == "event" else None

    def steps(self, after: TagOffset = None, **_: Any) -> AsyncGenerator[Any, None]:
        raise StorageFailed("a server does not give out watermarks")

    async def verify(self) -> Any:
        raise StorageFailed("views are verified where the store is: everlog tags verify")

    async def drop(self, *, topic: str | None = None, journal_id: str | None = None) -> int:
        raise StorageFailed("views are dropped where the store is: everlog tags drop")


def _where(after: TagOffset, since: datetime | None, token: Position | str | None) -> dict[str, str | None]:
    start, position = parse_start(after, since, token)
    return {
        "after": None if start == BEGINNING else str(start),
        "position": None if position is None else str(position),
    }


class RemoteProjections(Projections):
    """The projections of a server: how they are, and commands; they run elsewhere. Offsets come as they are shown."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, name: str | None = None) -> list[ProjectionStatus]:
        url = "/projections" if name is None else f"/projections/{segment(name)}"
        answer = await self._wire.send("GET", url)
        found = msgspec.json.decode(answer.content, type=ProjectionsBody)
        return [_status(one) for one in found.projections]

    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        if key is None:
            found = await self.list(name)
            if len(found) != 1:
                keys = ", ".join(one.key for one in found[:10])
                raise StorageFailed(f"the projection {name} has the keys {keys}: name one")
            return found[0]
        answer = await self._wire.send("GET", f"/projections/{segment(name)}/{segment(key)}")
        return _status(msgspec.json.decode(answer.content, type=InstanceBody))

    async def offset(self, name: str, key: str | None = None) -> Offset | None:
        return (await self.get(name, key)).offset

    async def pause(self, name: str, key: str | None = None, *, wait: float | None = None) -> None:
        await self._command(name, key, "pause", {"wait": wait})

    async def resume(self, name: str, key: str | None = None, *, wait: float | None = None) -> None:
        await self._command(name, key, "resume", {"wait": wait})

    async def skip(self, name: str, key: str | None = None, *, offset: str | None = None) -> str:
        found = await self._command(name, key, "skip", {"offset": offset})
        return str(found["what"]).removeprefix("skips ")

    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
        params = {"after": str(token), "seconds": seconds}
        await self._wire.send("GET", f"/projections/{segment(name)}", params=params)

    async def copies(self, name: str) -> Copies:
        answer = await self._wire.send("GET", f"/projections/{segment(name)}")
        found = msgspec.json.decode(answer.content, type=ProjectionBody).copies
        return Copies() if found is None else copies_of(found)

    async def request_rebuild(self, name: str) -> Copies:
        return await self._command_view(name, "rebuild")

    async def request_verify(self, name: str) -> Copies:
        return await self._command_view(name, "verify")

    async def cancel_verify(self, name: str) -> Copies:
        return await self._command_view(name, "cancel-verify")

    async def switch(self, name: str, *, back: bool = False) -> Copies:
        return await self._command_view(name, "switch-back" if back else "switch")

    async def abort(self, name: str) -> Copies:
        return await self._command_view(name, "abort")

    async def _command_view(self, name: str, command: CopyCommand) -> Copies:
        answer = await self._wire.send("POST", f"/projections/{segment(name)}", body={"command": command})
        return copies_of(msgspec.json.decode(answer.content, type=CopiesBody))

    async def _command(self, name: str, key: str | None, what: str, body: dict[str, Any]) -> Any:
        known = key if key is not None else (await self.get(name)).key
        url = f"/projections/{segment(name)}/{segment(known)}/{what}"
        return (await self._wire.send("POST", url, body=body)).json()

    async def store(self) -> Any:
        raise StorageFailed("projections run where the store is; a server shows them and passes commands on")

    async def close(self) -> None:
        """Nothing of its own."""


def _status(body: InstanceBody) -> ProjectionStatus:
    fields: dict[str, Any] = {name: getattr(body, name) for name in InstanceBody.__struct_fields__}
    fields["lag"] = None if body.lag is None else Lag(body.lag.events, body.lag.seconds)
    return ProjectionStatus(**fields)
