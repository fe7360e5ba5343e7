"""Journals and tags over HTTP keep the promises that they keep in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import uvicorn

import everlog
from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.core.events import Event, Json
from everlog.core.timeuuid import start_of
from everlog.errors import (
    AccessDenied,
    Conflict,
    InvalidConfig,
    InvalidId,
    InvalidInput,
    InvalidOffset,
    InvalidPosition,
    OutcomeUnknown,
    StorageFailed,
    Unreachable,
)
from everlog.projections.record_source import records
from everlog.remote import connection
from everlog.testing import JournalConformance
from everlog.testing.journal_support import OUTCOMES, keys
from everlog.testing.replication import replicate
from everlog.testing.tag_reads import TagReadSuite
from tests.http_support import new_token, through_server
from tests.support import small_config
from tests.waiting import until


@pytest.fixture
async def everlog_(tmp_path, clock) -> AsyncIterator[Any]:
    async with connect(small_config(tmp_path / "data"), clock=clock) as local, through_server(local) as log:
        yield log


class TestJournalOverHttp(JournalConformance):
    """The suite of journals; of its two large matrices, the corners."""

    @pytest.fixture
    async def everlog(self, everlog_: Any) -> Any:
        return everlog_

    @pytest.mark.parametrize("condition", ["store empty", "one behind"])
    @pytest.mark.parametrize("history", ["nothing", "then purge", "deletes between appends", "a gap"])
    async def test_outcomes(self, everlog: Everlog, history: str, condition: str) -> None:
        assert history in OUTCOMES
        await super().test_outcomes(everlog, history, condition)

    @pytest.mark.parametrize("condition", ["store empty", "all replicated"])
    async def test_contract(self, everlog: Everlog, condition: str) -> None:
        for size, first, batched in [(0, 1, True), (2, 5, True), (2, 1, False)]:
            await self._contract(everlog, condition, size, first, batched)

    async def _contract(self, everlog: Everlog, condition: str, size: int, first: int, batched: bool) -> None:
        for journal_id in await keys(everlog.journal("t")):
            await everlog.journal("t").purge(journal_id)
        await super().test_contract(everlog, condition, size, first, batched)

    @pytest.mark.parametrize("condition", ["store empty", "one behind"])
    async def test_a_broken_record_halts_its_journal_only(self, everlog: Everlog, condition: str) -> None:
        await super().test_a_broken_record_halts_its_journal_only(everlog, condition)

    @pytest.mark.parametrize("condition", ["store empty", "all replicated"])
    async def test_the_first_of_two_expected_appends_wins(self, everlog: Everlog, condition: str) -> None:
        await super().test_the_first_of_two_expected_appends_wins(everlog, condition)

    @pytest.mark.parametrize("condition", ["store empty", "all replicated"])
    async def test_everything_given_comes_back(self, everlog: Everlog, condition: str) -> None:
        await super().test_everything_given_comes_back(everlog, condition)

    @pytest.mark.parametrize("condition", ["one behind"])
    async def test_skip_goes_on_without_the_record(self, everlog: Everlog, condition: str) -> None:
        await super().test_skip_goes_on_without_the_record(everlog, condition)

    @pytest.mark.parametrize("condition", ["one behind"])
    async def test_a_purge_ends_a_halt(self, everlog: Everlog, condition: str) -> None:
        await super().test_a_purge_ends_a_halt(everlog, condition)


class TestTagsOverHttp(TagReadSuite):
    @pytest.fixture
    async def everlog(self, everlog_: Any) -> Any:
        return everlog_


async def test_ids_topics_and_payloads_of_every_kind(everlog_: Any) -> None:
    """What is one segment here stays one; no number of a payload changes."""
    ids = ["a/b", "ü ü", "%2F", "a?b#c", "x" * 1000, "..a", "a+b&c=d", "'\"<>"]
    journal = everlog_.journal("odd.topic_1-")
    for journal_id in ids:
        await journal.append(journal_id, [Event(journal_id, tags={"a/b"})], expected=0)
    assert await keys(journal) == sorted(ids)
    assert await everlog_.topics() == ["odd.topic_1-"]
    for journal_id in ids:
        assert [event.payload async for event in journal.read(journal_id)] == [journal_id]
    text = '{"a":1.10,"b":12345678901234567890123,"c":1E+30}'
    token = await journal.append("numbers", Event(Json(msgspec.Raw(text.encode()))), expire_after=timedelta(days=1))
    (event,) = [event async for event in journal.read("numbers", after=token)]
    assert (event.data, event.payload_type) == (text, "json")
    assert event.metadata["payload"]["expireAfter"] == "1 day"
    local = [one async for one in everlog_._local.journal("odd.topic_1-").read("numbers")]
    assert local == [event]


async def test_errors_are_the_same(everlog_: Any) -> None:
    journal = everlog_.journal("t")
    token = await journal.append("k", [Event(1), Event(2)])
    with pytest.raises(Conflict) as conflict:
        await journal.append("k", Event(3), expected=1)
    assert (conflict.value.expected, conflict.value.actual) == (1, 2)
    with pytest.raises(InvalidPosition):
        _ = [event async for event in journal.read("k", after=f"other{token}")]
    nowhere = f"t:10000:{token.offset}"
    for call in (
        anext(aiter(journal.read("k", after=nowhere))),
        journal.pointer("k", after=nowhere),
        anext(aiter(journal.keys(after=nowhere))),
        anext(aiter(everlog_.tag("eu").current(after=nowhere))),
        everlog_.status(after=nowhere),
    ):
        with pytest.raises(InvalidPosition):
            await call
    with pytest.raises(InvalidId):
        await journal.append("", Event(1))
    with pytest.raises(InvalidInput):
        await journal.append("k", Event(1), append_id="nonsense")
    with pytest.raises(InvalidInput):
        everlog_.journal("no topic")
    with pytest.raises(StorageFailed):
        await journal.head("k")


async def test_by_journal_as_of_now_and_what_a_server_cannot_do(tmp_path) -> None:
    """What needs the files themselves says so."""
    async with (
        connect(small_config(tmp_path / "data")) as local,
        serving(local, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
    ):
        await remote.journal("t").append("k", [Event(at) for at in range(3)])
        assert [event.payload async for event in remote.events_by_persistence_id("t", "k", 2)] == [1, 2]
        assert [key async for key in remote.persistence_ids("t")] == ["k"]
        assert (await remote.journal("t").recover("k")).seq_nr == 3
        for call in (
            lambda: remote.events_by_persistence_id("t", "k", live=True),
            lambda: remote.persistence_ids("t", live=True),
            lambda: remote.quarantine,
            lambda: remote.tag("t").steps(),
        ):
            with pytest.raises(StorageFailed):
                call()
        for waited in (remote.expire(), remote.trim(), remote.tag("t").verify(), remote.projections.store()):
            with pytest.raises(StorageFailed):
                await waited


async def test_a_live_tag_says_what_is_wrong_for_good(everlog_: Any) -> None:
    """An error that a further try cannot change is raised, and not met again and again."""
    beyond = start_of(everlog_.parts.clock.now_ms() + 10_000_000)
    with pytest.raises(InvalidOffset, match="future"):
        await asyncio.wait_for(anext(everlog_.tag("t").live(after=beyond)), 60)


async def test_a_repeated_append_is_stored_once(everlog_: Any) -> None:
    """The answer of the first one is lost; the repetition has its place and its numbers."""
    journal = everlog_.journal("t")
    await journal.append("k", Event("before"))
    send, lost = journal._wire.send, []

    async def answer_is_lost(*arguments: Any, **options: Any) -> Any:
        await send(*arguments, **options)
        lost.append(arguments)
        raise Unreachable("no answer")

    journal._wire.send = answer_is_lost
    with pytest.raises(OutcomeUnknown) as unknown:
        await journal.append("k", Event("once"))
    journal._wire.send = send
    assert len(lost) == 1
    token = await journal.append("k", Event("once"), append_id=unknown.value.append_id)
    assert token.range == (2, 2)
    assert [event.payload async for event in journal.read("k")] == ["before", "once"]


async def test_projections_status_and_tokens(tmp_path) -> None:
    """A projection's status and commands; a server with tokens, and the twin without await."""
    config = small_config(tmp_path / "data")
    seen: list[Any] = []

    @everlog.projection("seen", source=records("t"))
    async def handler(event: Any, view: Any) -> None:
        seen.append(event)

    async with connect(config) as local:
        token = new_token(config, "admin")
        async with serving(local, host="127.0.0.1", port=0) as address:
            async with connect(address) as stranger:
                with pytest.raises(AccessDenied):
                    await stranger.topics()
            async with connect(address, token=token) as remote, local.projections.run(handler):
                position = await remote.journal("t").append("k", Event(1))
                await until(lambda: remote.projections.list("seen"))  # a server knows it once it has begun
                await remote.projections.wait("seen", position)
                (status,) = await remote.projections.list()
                assert (status.name, status.paused, status.handled >= 1) == ("seen", False, True)
                assert status.lag is not None
                await remote.projections.pause("seen", wait_s=60)
                assert (await local.projections.get("seen")).paused
                await remote.projections.resume("seen", wait_s=60)
                assert (await remote.status()).topics == sorted(await remote.topics())
                operations = [one.payload async for one in local.journal("everlog.operations").read("console")]
                assert [one.get("action", one.get("outcome")) for one in operations] == [
                    "pause_projection",
                    "done",
                    "resume_projection",
                    "done",
                ]
                assert operations[0]["by"] == "admin"

                def blocking() -> list[Any]:
                    with everlog.sync.connect(address, token=token) as twin:
                        return [event.payload for event in twin.journal("t").read("k")]

                assert await asyncio.to_thread(blocking) == [1]
    assert seen
    with pytest.raises(InvalidConfig):
        connect("http://evl_1_2@127.0.0.1:1")
    with pytest.raises(InvalidConfig):
        connect(config, token="evl_1_2")


async def test_text_with_separators_of_its_own(everlog_: Any) -> None:
    """What ends a line elsewhere is a character like others here: in lines, and in server-sent events."""
    text = "a\u2028b\u2029c\x85d\x0be\r\nf"
    token = await everlog_.journal("t").append("k", [Event(text, tags={"t"}), Event({"text": text})])
    assert [event.payload async for event in everlog_.journal("t").read("k")] == [text, {"text": text}]
    await replicate(everlog_)
    (event,) = [one async for one in everlog_.tag("t").current(token=token)]
    assert event.payload == text
    live = everlog_.tag("t").live(token=token)
    assert (await asyncio.wait_for(anext(live), 30)).payload == text
    await live.aclose()


def test_an_idle_connection_is_given_up_before_a_server_closes_it() -> None:
    """Else a request may meet its end, and the caller cannot know whether it was heard."""
    kept_s = connection._LIMITS.keepalive_expiry
    assert kept_s is not None
    assert kept_s < uvicorn.Config("app").timeout_keep_alive
