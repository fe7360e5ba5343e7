"""What the operations log says about refusals: who was refused what, how often, and never with which token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config
from everlog.errors import OutcomeUnknown, StorageFailed
from everlog.server.audit import JOURNAL, TOPIC, Audit
from everlog.server.refusals import MAX_KINDS, RefusalKind, Refusals
from tests.http_support import new_token, send, server
from tests.support import ManualClock, small_config
from tests.waiting import until

EVENT = {"events": [{"payload": 1}]}


@pytest.fixture
def config(tmp_path) -> Config:
    return small_config(tmp_path / "data")


@pytest.fixture
def tokens(config: Config) -> dict[str, str]:
    return {name: new_token(config, name) for name in ("read", "write", "admin")}


@pytest.fixture
async def served(config: Config, tokens: dict[str, str]) -> AsyncIterator[tuple[Everlog, httpx.AsyncClient]]:
    async with server(config) as (log, http):
        yield log, http


async def entries(log: Everlog) -> list[dict[str, Any]]:
    return [event.payload async for event in log.journal(TOPIC).read(JOURNAL)]


async def refused(log: Everlog) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["action"], one["by"]): one for one in await entries(log) if one.get("outcome") == "refused"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_refusals_are_in_the_operations_log(served, tokens):
    """Writes and commands that were refused, bad tokens, failed log-ins; but not a page that asks for a log-in."""
    log, http = served
    for _ in range(3):
        await send(http, "POST", "/journals/orders/o-1", EVENT, 403, headers=bearer(tokens["read"]))
    await send(http, "POST", "/projections/a/b/pause", {}, 403, headers=bearer(tokens["write"]))
    await send(http, "POST", "/journals/documents/a/purge", status=403, headers=bearer(tokens["admin"]))
    await send(http, "GET", "/journals", status=401, headers=bearer("evl_000000000000_wrong"))
    await send(http, "POST", "/login", {"token": "evl_000000000000_wrong"}, 401)
    await http.post("/login", data={"token": "evl_000000000000_wrong"})
    await send(http, "PUT", "/hyper-storage/content/a", 1, 401)
    await send(http, "GET", "/journals", status=401)
    wanted = {("refused", name) for name in ("read", "write", "admin")} | {
        ("bad token", ""),
        ("failed log-in", ""),
        ("no token", ""),
    }

    async def all_there() -> bool:
        return wanted == set(await refused(log))

    await until(all_there)
    found = await refused(log)
    assert found["refused", "read"]["target"] == {
        "method": "POST",
        "path": "/journals/orders/o-1",
        "from": "127.0.0.1",
    }
    assert found["refused", "admin"]["target"]["path"] == "/journals/documents/a/purge"
    page = (await send(http, "GET", "/console/operations.json", headers=bearer(tokens["read"]))).json()
    assert {one["outcome"] for one in page["operations"]} == {"refused", "failed"}


async def test_a_flood_of_bad_tokens_is_one_entry_a_minute(config, tokens):
    """The entry has their number, and what is left over is written when the server ends."""
    async with server(config) as (log, http):
        for number in range(300):
            answer = await http.get(f"/journals/evl_0123_{number}", headers=bearer(f"evl_000000000000_{number}"))
            assert answer.status_code == 401
        assert len(await entries(log)) <= 2
    async with connect(config) as log:
        found = await entries(log)
        assert sum(one["count"] for one in found) == 300
        assert len(found) <= 3
        assert "evl_0" not in json.dumps(found)


async def test_a_purge_is_noted_before_and_after_whoever_asks(served, tokens):
    log, http = served
    await send(http, "POST", "/journals/orders/o-1", EVENT, 201, headers=bearer(tokens["write"]))
    await send(http, "POST", "/journals/orders/o-1/purge", headers=bearer(tokens["write"]))
    before, after = await entries(log)
    assert (before["action"], before["by"]) == ("purge_journal", "write")
    assert before["target"]["path"] == "/journals/orders/o-1/purge"
    assert (after["id"], after["outcome"]) == (before["id"], "done")


async def test_many_callers_are_many_entries_up_to_a_limit(config):
    """From thousands of addresses, the log grows no faster; the counts add up to all of them."""
    clock = ManualClock()
    async with connect(config) as log:
        refusals = Refusals(Audit(log), clock, window_s=60)

        async def counted() -> tuple[int, int]:
            found = await entries(log)
            return len(found), sum(one["count"] for one in found)

        for number in range(500):
            refusals.note(RefusalKind("bad token", "", f"10.0.0.{number}"), {"method": "GET", "path": "/"})
        await refusals.write()
        assert await counted() == (MAX_KINDS + 1, 500)
        for _ in range(7):
            refusals.note(RefusalKind("bad token", "", "10.0.0.0"), {"method": "GET", "path": "/"})
        await refusals.write()
        assert await counted() == (MAX_KINDS + 1, 500), "not before the window is over"
        clock.advance(61)
        await refusals.write()
        assert await counted() == (MAX_KINDS + 2, 507)
        assert (await entries(log))[-1]["since_ms"] == clock.now_ms() - 61_000
        clock.advance(61)
        await refusals.write()
        await refusals.write(everything=True)
        assert await counted() == (MAX_KINDS + 2, 507)
        refusals.note(RefusalKind("bad token", "", "10.9.9.9"), {"method": "GET", "path": "/"})
        await refusals.write()
        assert (await entries(log))[-1]["count"] == 1, "kinds that have ended are forgotten: there is room again"


async def test_no_refusal_is_lost_while_the_log_cannot_be_written(config, caplog):
    """What failed is written later, with what came meanwhile; also where the outcome of an entry was unknown."""
    clock = ManualClock()
    async with connect(config) as log:
        audit = Audit(log)
        write, broken = audit.refused, True

        async def sometimes(*given: Any, **more: Any) -> None:
            if not broken:
                return await write(*given, **more)
            if clock.monotonic() % 2 < 1:
                raise StorageFailed("the disk is away")
            with pytest.MonkeyPatch.context() as patch:  # it is stored, and the answer is lost
                patch.setattr(audit, "_journal", Unanswered(audit._journal))
                return await write(*given, **more)

        audit.refused = sometimes  # type: ignore[method-assign]
        refusals = Refusals(audit, clock, window_s=60)
        for step in range(1, 8):
            for number in range(step):
                refusals.note(RefusalKind("bad token", "", f"10.0.0.{number}"), {"method": "GET", "path": "/"})
            await refusals.write()
            clock.advance(61)
        assert "the disk is away" in caplog.text
        broken = False
        for _ in range(3):
            await refusals.write()
            clock.advance(61)
        found = await entries(log)
        assert sum(one["count"] for one in found) == sum(range(8))
        by_host: dict[str, int] = {}
        for one in found:
            by_host[one["id"]] = by_host.get(one["id"], 0) + 1
        assert set(by_host.values()) == {1}, "an entry is there once"


class Unanswered:
    """A journal whose appends are stored, and answered by a time-out."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    async def append(self, *given: Any, **more: Any) -> None:
        token = await self._journal.append(*given, **more)
        events = [event async for event in self._journal.read(JOURNAL, from_seq=token.range.first)]
        raise OutcomeUnknown(JOURNAL, events[0].append_id, "no answer")


async def test_an_entry_that_cannot_be_written_stops_no_others(config, caplog):
    async with connect(config) as log:
        audit = Audit(log)
        write, failures = audit.refused, [StorageFailed("the disk is away")]

        async def sometimes(*given: Any, **more: Any) -> None:
            if failures:
                raise failures.pop()
            await write(*given, **more)

        audit.refused = sometimes  # type: ignore[method-assign]
        refusals = Refusals(audit, ManualClock())
        task = asyncio.create_task(refusals.run())
        refusals.note(RefusalKind("bad token"), {"path": "/"})
        await until(lambda: "the disk is away" in caplog.text)
        refusals.note(RefusalKind("no token"), {"path": "/"})

        async def noted() -> bool:
            return [one["action"] for one in await entries(log)] == ["no token"]

        await until(noted)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
