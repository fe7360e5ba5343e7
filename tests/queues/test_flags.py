"""Flags: how they are told, and those that the files themselves raise."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

import everlog
from everlog.config import QueueConfig
from everlog.errors import StorageFailed
from everlog.queues.sqlite import queue_store as sqlite_store
from tests.support import small_config
from tests.waiting import until


@pytest.fixture
def receiver():
    """An address that takes what is sent there."""
    told = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(
                (self.headers["Content-Type"], json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/flags", told
    server.shutdown()
    thread.join()
    server.server_close()


async def kill_one(log, queue="jobs"):
    await log.queue(queue).put("k")
    (job,) = await log.queue(queue).claim()
    await log.queue(queue).fail(job, "no", retry=False)


async def test_a_new_flag_is_told_once(tmp_path, receiver, caplog):
    """A line in the log and a POST when it is raised; when it is raised again, only its count changes."""
    address, told = receiver
    config = msgspec.structs.replace(small_config(tmp_path / "data"), queue=QueueConfig(webhook=address))
    with caplog.at_level(logging.WARNING, "everlog.queues"):
        async with everlog.connect(config) as log:
            await kill_one(log)
            await kill_one(log)
            (flag,) = await log.queue("jobs").flags()
            assert flag.count == 2
    assert [record.getMessage() for record in caplog.records].count(
        "the queue jobs raises the flag failed: see 'everlog queue flags jobs'"
    ) == 1
    ((kind, body),) = told
    assert kind == "application/json"
    assert (body["queue"], body["reason"], body["count"]) == ("jobs", "failed", 1)
    assert body["deadEntry"] is not None


async def test_nobody_who_hears_it_holds_up_nothing(tmp_path, caplog):
    config = msgspec.structs.replace(
        small_config(tmp_path / "data"), queue=QueueConfig(webhook="http://127.0.0.1:9/flags")
    )
    async with everlog.connect(config) as log:
        await kill_one(log)
        assert len(await log.queue("jobs").flags()) == 1
    assert "was not told" in caplog.text


async def test_a_bucket_that_cannot_be_carried_on_raises_a_flag(tmp_path, monkeypatch):
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        await log.queue("jobs").put("k")

        def fail(*_):
            raise StorageFailed("the disk is ill")

        monkeypatch.setattr(sqlite_store, "tend", fail)
        with pytest.raises(StorageFailed, match="ill"):
            await log.queues.tend("jobs")
        assert [flag.reason for flag in await log.queue("jobs").flags()] == ["bucket_overdue"]


def test_an_address_must_be_one():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"webhook": "file:///etc/passwd"}, QueueConfig)


async def test_a_receiver_that_makes_no_sense_is_told_the_next_flag(tmp_path, caplog):
    """Whatever it answers: the thread that tells goes on, and a log that is closed does not wait for it for ever."""
    told = []

    async def answer(reader, writer):
        told.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"no HTTP at all\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/flags"
    config = msgspec.structs.replace(small_config(tmp_path / "data"), queue=QueueConfig(webhook=address))
    async with server, everlog.connect(config) as log:
        await kill_one(log, "one")
        await until(lambda: len(told) == 1)
        await kill_one(log, "two")
        await until(lambda: len(told) == 2)
    assert caplog.text.count("a flag was not told") == 2
