"""Projections of a server: their status, and commands for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.core.arguments import check_flag, check_seconds, check_shown_offset, check_whole
from everlog.core.values import Position, check_position
from everlog.errors import InvalidProjection
from everlog.projections.api import Projections, ProjectionStatus
from everlog.projections.copies import Copies
from everlog.projections.dead_letters import ShownDeadLetter
from everlog.projections.projection_id import check_instance, check_part
from everlog.projections.source import Lag
from everlog.remote.connection import Wire
from everlog.wire.http import segment
from everlog.wire.projections import (
    CopiesBody,
    CopyCommand,
    InstanceBody,
    LettersBody,
    ProjectionBody,
    ProjectionsBody,
    copies_of,
    letter_of,
)


class RemoteProjections(Projections):
    """The projections of a server: their status, and commands; they run elsewhere. Offsets come as they are shown."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, name: str | None = None) -> list[ProjectionStatus]:
        url = "/projections" if name is None else _url(name)
        answer = await self._wire.send("GET", url)
        found = msgspec.json.decode(answer.content, type=ProjectionsBody)
        return [_status(one) for one in found.projections]

    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        if key is None:
            found = await self.list(name)
            if len(found) != 1:
                keys = ", ".join(one.key for one in found[:10])
                raise InvalidProjection(f"the projection {name} has the keys {keys}: name one")
            return found[0]
        answer = await self._wire.send("GET", f"{_url(name)}/{_part(key)}")
        return _status(msgspec.json.decode(answer.content, type=InstanceBody))

    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        await self._command(name, key, "pause", {"wait": check_seconds("wait_s", wait_s)})

    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        await self._command(name, key, "resume", {"wait": check_seconds("wait_s", wait_s)})

    async def skip(self, name: str, key: str | None = None, *, offset: str | None = None) -> str:
        check_shown_offset(offset)
        found = await self._command(name, key, "skip", {"offset": offset})
        return str(found["what"]).removeprefix("skips ")

    async def dead_letters(self, name: str, key: str | None = None, *, limit: int = 1000) -> Sequence[ShownDeadLetter]:
        check_instance(name, key)
        check_whole("limit", limit, min_value=1)
        keys = [key] if key is not None else [one.key for one in await self.list(name)]
        found: list[ShownDeadLetter] = []
        for one in keys:
            answer = await self._wire.send("GET", f"{_url(name)}/{_part(one)}/dead-letters")
            body = msgspec.json.decode(answer.content, type=LettersBody)
            found += [letter_of(name, letter) for letter in body.dead_letters]
        return found[:limit]

    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
        params = {"after": str(check_position(token)), "seconds": check_seconds("seconds", seconds)}
        await self._wire.send("GET", _url(name), params=params)

    async def copies(self, name: str) -> Copies:
        answer = await self._wire.send("GET", _url(name))
        found = msgspec.json.decode(answer.content, type=ProjectionBody).copies
        return Copies() if found is None else copies_of(found)

    async def request_rebuild(self, name: str) -> Copies:
        return await self._command_view(name, "rebuild")

    async def request_verify(self, name: str) -> Copies:
        return await self._command_view(name, "verify")

    async def cancel_verify(self, name: str) -> Copies:
        return await self._command_view(name, "cancel-verify")

    async def switch(self, name: str, *, back: bool = False) -> Copies:
        return await self._command_view(name, "switch-back" if check_flag("back", back) else "switch")

    async def abort(self, name: str) -> Copies:
        return await self._command_view(name, "abort")

    async def _command_view(self, name: str, command: CopyCommand) -> Copies:
        answer = await self._wire.send("POST", _url(name), body={"command": command})
        return copies_of(msgspec.json.decode(answer.content, type=CopiesBody))

    async def _command(self, name: str, key: str | None, what: str, body: dict[str, Any]) -> Any:
        known = key if key is not None else (await self.get(name)).key
        url = f"{_url(name)}/{_part(known)}/{what}"
        return (await self._wire.send("POST", url, body=body)).json()


def _url(name: str) -> str:
    return f"/projections/{segment(check_part('name', name))}"


def _part(key: str) -> str:
    return segment(check_part("key", key))


def _status(body: InstanceBody) -> ProjectionStatus:
    fields: dict[str, Any] = {name: getattr(body, name) for name in InstanceBody.__struct_fields__}
    for name in ("lag", "pipeline_lag"):
        lag = fields[name]
        fields[name] = None if lag is None else Lag(lag.events, lag.seconds)
    return ProjectionStatus(**fields)
