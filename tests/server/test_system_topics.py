"""Topics of the system over every way in: whoever asks, they take writes from their own part alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

import everlog.sync
from everlog.client import connect
from everlog.config import Config, DocumentsConfig, JournalConfig
from everlog.core.events import Event
from everlog.errors import SystemTopic
from everlog.journal.journal import LocalJournal
from everlog.testing.journal_doors import SYSTEM_TOPICS, WRITES
from tests.cli_support import Cli
from tests.http_support import new_token, send, server
from tests.support import small_config
from tests.waiting import until

BODY = {"events": [{"payload": 1}]}
REQUESTS = [
    ("POST", "", BODY),
    ("DELETE", "", ...),
    ("DELETE", "?to=1", ...),
    ("POST", "/purge", ...),
    ("POST", "/mark", {"id": "m"}),
    ("PUT", "/snapshots/1", {"payload": 1}),
    ("DELETE", "/snapshots", ...),
]
COMMANDS = [
    ("journal", "append", "{}", "k", "--payload", "x"),
    ("journal", "delete", "{}", "k"),
    ("journal", "purge", "{}", "k"),
    ("journal", "mark", "{}", "k"),
    ("snapshot", "save", "{}", "k", "--seq-nr", "1", "--payload", "x"),
    ("snapshot", "delete", "{}", "k", "--seq-nr", "1"),
]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(tmp_path / "data")


async def test_no_request_writes_into_them_whatever_its_scopes(config):
    """Also with a name that is percent-encoded, which is the same name."""
    token = new_token(config, "admin")
    headers = {"Authorization": f"Bearer {token}"}
    async with server(config) as (log, http):
        await send(
            http, "PUT", "/hyper-storage/content/shop/a", 1, 201, headers={**headers, "Hyper-Storage-Wait": "full"}
        )
        for topic in (*SYSTEM_TOPICS, "%64ocuments", "everlog%2Eoperations"):
            for method, rest, body in REQUESTS:
                answer = await send(http, method, f"/journals/{topic}/shop%2Fa{rest}", body, 403, headers=headers)
                assert answer.json()["code"] == "system-topic", (topic, method, rest)
        await send(http, "PUT", "/hyper-storage/content/shop/a", 2, headers={**headers, "Hyper-Storage-Wait": "full"})
        revisions = [event.revision async for event in log.documents.history("shop/a")]
        assert revisions == [1, 2]
        read = await send(http, "GET", "/journals/documents/shop%2Fa?strict=true", headers=headers)
        assert len(read.json()["events"]) == 2
        with pytest.raises(SystemTopic):
            await log.journal("documents").purge("shop/a")


async def test_no_client_writes_into_them(config):
    async with server(config) as (_, http), connect(str(http.base_url)) as remote:
        for topic in SYSTEM_TOPICS:
            for name, write in WRITES.items():
                with pytest.raises(SystemTopic) as refused:
                    await write(remote.journal(topic))
                assert refused.value.topic == topic, name

        def blocking() -> None:
            with everlog.sync.connect(str(http.base_url)) as twin, pytest.raises(SystemTopic):
                twin.journal("documents").append("k", Event(1))

        await asyncio.to_thread(blocking)
    with everlog.sync.connect(config) as twin:
        for call in ("purge", "delete", "mark"):
            with pytest.raises(SystemTopic):
                getattr(twin.journal("everlog.operations"), call)("console")
        with pytest.raises(SystemTopic):
            twin.journal("documents").snapshots.save("k", seq_nr=1, payload=1)


def test_no_command_writes_into_them(tmp_path):
    cli = Cli(tmp_path / "data")
    with everlog.sync.connect(tmp_path / "data") as log:
        log.documents.put("k", 1, wait=True)
        own = LocalJournal("everlog.operations", log._inner.parts, owned=True)
        log._portal.call(own.append("k", Event(1)))
    for topic in ("everlog.operations", "documents"):
        for words in COMMANDS:
            shown = cli.error(*[word.format(topic) for word in words], code=2)
            assert "alone writes into it" in json.dumps(shown), words
    line = json.dumps({"topic": "documents", "id": "k", "payload": 1})
    result = cli.run("journal", "append", "documents", "--lines", "-", stdin=line, code=2)
    assert "alone writes into it" in result.stderr
    with everlog.sync.connect(tmp_path / "data") as log:
        for topic in ("everlog.operations", "documents"):
            assert [event.seq_nr for event in log.journal(topic).read("k")] == [1]


async def test_a_name_that_the_configuration_gives_to_a_part_is_closed(tmp_path):
    """Whatever the topics of the log are called, it is the name that people use that counts."""
    found = small_config(tmp_path / "data")
    taken_over = msgspec.structs.replace(
        found,
        journal=JournalConfig(topic_prefix="", topics=("orders", "everlog.operations", "changes")),
        documents=DocumentsConfig(topic="changes"),
    )
    async with connect(taken_over) as log:
        for topic in ("changes", "everlog.operations"):
            with pytest.raises(SystemTopic):
                await log.journal(topic).append("k", Event(1))
        await log.journal("orders").append("k", Event(1))
        await log.documents.put("a", 1, wait=True)
        assert [event.seq_nr async for event in log.journal("changes").read("a")] == [1]
    prefixed = msgspec.structs.replace(small_config(tmp_path / "other"), journal=JournalConfig(topic_prefix="everlog."))
    async with connect(prefixed) as log:
        await log.journal("orders").append("k", Event(1))
        with pytest.raises(SystemTopic):
            await log.journal("documents").append("k", Event(1))


async def test_the_owning_parts_and_operators_keep_their_doors(config):
    """Operations are noted, documents change, and what expires may be looked for in every topic."""
    token = new_token(config, "admin")
    async with server(config) as (log, http):
        headers = {"Authorization": f"Bearer {token}"}
        assert (await http.delete("/queues/none?running=true", headers=headers)).status_code == 404
        await log.documents.put("a", 1, wait=True)

        async def noted() -> bool:
            return len([event async for event in log.journal("everlog.operations").read("console")]) == 2

        await until(noted)
        report = await log.expire()
        assert sorted(report.purged) == ["documents", "everlog.operations"]
        assert [item async for item in log.quarantine.list("documents")] == []
