"""What the status of a projection says: a source that stands still, and the events of dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import everlog
import everlog.sync
from everlog import Event, Recovery, at_least_once
from everlog.config import Config, TagsConfig
from everlog.errors import InvalidOffset, Unreachable
from everlog.projections.projection import Projection
from everlog.projections.source import EnvelopeFacts
from everlog.testing import replicate
from tests.http_support import server
from tests.support import small_config


def failing(source: Any) -> Projection:
    async def fails(envelope) -> None:
        raise ValueError("poison")

    return Projection(
        "seen", source=source, handler=fails, strategy=at_least_once(save_every=1), recovery=Recovery.skip()
    )


@pytest.fixture
def config(tmp_path) -> Config:
    return small_config(tmp_path / "data")


async def append(log, payload: Any = "hello") -> everlog.Position:
    return await log.journal("orders").append("o-1", Event(payload, tags={"eu"}))


LETTERS = [
    (lambda: everlog.tag("eu"), {"n": 1}, EnvelopeFacts(payload_type="json", payload={"n": 1})),
    (lambda: everlog.tag("eu"), b"\xff\x00", EnvelopeFacts(payload_type="binary", payload=b"\xff\x00")),
    (lambda: everlog.records("orders"), "text", EnvelopeFacts(payload_type="text", payload="text")),
]


@pytest.mark.parametrize(("source", "payload", "facts"), LETTERS, ids=["json", "binary", "records"])
async def test_a_dead_letter_shows_its_event(config, source, payload, facts):
    """Topic, id, seqNr, tags and payload, not the bytes that it was written down as: here, and at a client."""
    async with server(config, writable=True) as (log, http):
        token = await append(log, payload)
        await replicate(log)
        async with log.projections.run(failing(source())):
            await log.projections.wait("seen", token)
        (letter,) = await log.projections.dead_letters("seen")
        expected = msgspec.structs.replace(facts, topic="orders", id="o-1", seq_nr=1, tags=("eu",))
        assert (letter.event, letter.replayable) == (expected, True)
        async with everlog.connect(str(http.base_url)) as remote:
            (far,) = await remote.projections.dead_letters("seen")
        plain = "/wA=" if isinstance(payload, bytes) else payload
        assert far.event == msgspec.structs.replace(expected, payload=plain)
        assert (far.offset, far.cause, far.replayable) == (letter.offset, letter.cause, True)


async def test_the_event_of_an_own_source_is_its_payload(config):
    class Own:
        async def source(self, read_offset):
            yield {"nr": 1, "text": "one"}

        def extract_offset(self, envelope):
            return envelope["nr"]

    async with everlog.connect(config) as log:
        async with log.projections.run(failing(Own())) as runner:
            await runner.ended()
        (letter,) = await log.projections.dead_letters("seen")
    assert letter.event == EnvelopeFacts(payload={"nr": 1, "text": "one"})


async def test_an_offset_that_is_set_is_of_the_kind_that_is_stored(config):
    class Own:
        async def source(self, read_offset):
            yield 1

        def extract_offset(self, envelope):
            return envelope

    async with everlog.connect(config) as log:
        async with log.projections.run(failing(Own())) as runner:
            await runner.ended()
        for wrong in ("1", {"a": 1}):
            with pytest.raises(InvalidOffset, match="of another type"):
                await log.projections.set("seen", None, wrong)
        await log.projections.set("seen", None, 0, expected=1)
        await log.projections.clear("seen")
        await log.projections.set("seen", None, "1")


async def test_a_tag_without_a_pipeline_says_how_far_it_is_behind(config):
    """Embedded and at a client: the records that are missing, since when, and how to start the pipeline."""
    async with server(config) as (log, http), everlog.connect(str(http.base_url)) as remote:
        assert (await log.tag("eu").status()).warning is None, "nothing to show, nothing is missing"
        for _ in range(3):
            token = await append(log)
        for tag in (log.tag("eu"), remote.tag("eu"), log.slices(), remote.slices(0, 511)):
            status = await tag.status()
            assert (status.records, status.pipeline, status.complete_ms) == (3, None, None)
            assert status.seconds is not None
            assert "no pipeline ever ran here, start it with 'everlog up' or 'everlog replicate'" in status.warning
            assert status.warning.startswith("views by tag are 3 records behind the log")
        await replicate(log)
        status = await log.tag("eu").status()
        assert (status.records, status.seconds, status.remedy, status.warning) == (0, 0.0, None, None)
        assert status.complete_ms is not None
        assert token.offset >= 0


async def test_pages_of_tags_say_that_they_are_behind(config):
    """The last page of a view, and the list of tags; while the pipeline keeps up, nothing."""
    async with server(config) as (log, http):
        await append(log)
        await append(log)
        await replicate(log)
        for url in ("/tags", "/tags/eu"):
            assert (await http.get(url)).json()["behind"] is None
        await append(log)
        for url in ("/tags", "/tags/eu", "/slices/0/1023"):
            behind = (await http.get(url)).json()["behind"]
            assert behind["records"] == 1, url
            assert "start it with 'everlog up'" in behind["remedy"]
        first = (await http.get("/tags/eu?limit=1")).json()
        assert (first["behind"], first["next"] is not None) == (None, True), "there is more to read"


@pytest.mark.parametrize("fails", [Unreachable("no broker answers"), None], ids=["refuses", "hangs"])
async def test_views_are_shown_while_the_log_does_not_answer(config, monkeypatch, fails):
    """They are read from the store; only how far they are behind is not known then."""
    async with server(config) as (log, http):
        await append(log)
        await replicate(log)
        await append(log)

        async def topics() -> None:
            if fails is not None:
                raise fails
            await asyncio.Event().wait()

        monkeypatch.setattr(log.parts.log, "topics", topics)
        for url in ("/tags", "/tags/eu"):
            answer = await http.get(url)
            assert (answer.status_code, answer.json()["behind"]) == (200, None), url
        async for event in log.tag("eu").live():
            assert event.seq_nr == 1
            break


async def test_a_live_reader_without_a_pipeline_logs_one_warning(config, caplog):
    async with everlog.connect(config) as log:
        await append(log)
        await replicate(log)
        await append(log)
        for _ in range(2):
            async for _event in log.tag("eu").live():
                break
    warnings = [record.getMessage() for record in caplog.records if record.name == "everlog.tags.behind"]
    assert len(warnings) == 1
    assert "views by tag are 1 record behind the log" in warnings[0]


async def test_a_token_that_is_not_replicated_names_the_remedy(tmp_path):
    config = small_config(tmp_path / "data")
    config = msgspec.structs.replace(config, tags=TagsConfig(token_timeout_s=0.05))
    async with everlog.connect(config) as log:
        token = await append(log)
        with pytest.raises(everlog.NotReplicated, match=r"1 record behind the log.*start it with 'everlog up'"):
            [event async for event in log.tag("eu").current(token=token)]


def test_the_blocking_twin_says_it_too(config):
    with everlog.sync.connect(config) as log:
        log.journal("orders").append("o-1", [Event("x", tags={"eu"})])
        assert log.tag("eu").status().records == 1


async def test_a_projection_of_a_tag_says_that_its_source_is_behind(config):
    seen: list[str] = []

    @everlog.projection("seen", source=everlog.tag("eu"), strategy=at_least_once(save_every=1))
    async def handler(event) -> None:
        seen.append(event.id)

    async with server(config) as (log, http), everlog.connect(str(http.base_url)) as remote:
        first = await append(log)
        await replicate(log)
        async with log.projections.run(handler):
            await log.projections.wait("seen", first)
            token = await append(log)
            with pytest.raises(everlog.StillBehind, match="start it with 'everlog up'"):
                await log.projections.wait("seen", token, seconds=0.1)
            for where in (log, remote):
                status = await where.projections.get("seen")
                assert (status.lag.events, status.pipeline_lag.events) == (0, 1)
                assert "1 record behind the log" in status.remedy
            await replicate(log)
            await log.projections.wait("seen", token)
            status = await log.projections.get("seen")
            assert (status.pipeline_lag.events, status.remedy) == (0, None)
