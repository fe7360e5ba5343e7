"""Several who start at the same time on something new: whoever comes second finds what the first one made."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog import Event
from everlog.cli.sample import load_sample
from everlog.console.server import serving
from everlog.errors import DocumentConflict, PortTaken
from everlog.journal.journal import LocalJournal
from everlog.pipeline.start import find_start
from everlog.server.server import listen
from tests.support import small_config

PROCESSES = 4
ROUNDS = 5


def after_first(monkeypatch: pytest.MonkeyPatch, target: object, name: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something right after the first call of a method, before anybody sees its answer."""
    original = getattr(target, name)
    calls = 0

    async def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = await original(*arguments)
        if calls == 1:
            await work()
        return answer

    monkeypatch.setattr(target, name, call)


async def test_a_topic_that_is_made_while_somebody_looks_for_it_is_not_taken_for_gone(tmp_path, monkeypatch) -> None:
    """The reader finds it pinned, but had not found it in the log."""
    config = small_config(tmp_path / "data")
    async with everlog.connect(config) as writer, everlog.connect(config) as reader:
        after_first(
            monkeypatch, reader.parts.log, "topic", lambda: writer.journal("orders").append("o-1", Event("first"))
        )
        assert await reader.journal("orders").pointer("o-1") == 1


async def test_a_pipeline_takes_a_topic_that_is_made_while_it_starts(tmp_path, monkeypatch, clock) -> None:
    """Left out, it would not be replicated until the next start."""
    config = small_config(tmp_path / "data")
    async with everlog.connect(config) as writer, everlog.connect(config) as pipeline:
        log, store = pipeline.parts.log, pipeline.parts.store
        after_first(monkeypatch, log, "topics", lambda: writer.journal("orders").append("o-1", Event("first")))
        start = await find_start(log, store, config, clock, accept_loss=False)
    assert start.left_out == {}
    assert set(start.offsets) == {"journal-orders/0", "journal-orders/1"}


async def test_of_two_who_load_the_sample_one_does(tmp_path) -> None:
    """Else journals had their events twice, or a start failed with a conflict."""
    async with everlog.connect(tmp_path / "data") as first, everlog.connect(tmp_path / "data") as second:
        found = await asyncio.gather(load_sample(first), load_sample(second))
        assert sorted(sample is None for sample in found) == [False, True]
        for topic, count in (("orders", 10), ("carts", 6), ("accounts", 4)):
            journal = first.journal(topic)
            ends = [await journal.pointer(f"{topic[:-1]}-{number}") for number in range(1, count + 1)]
            assert {end for end in ends if end is not None} == {10}


async def test_two_who_define_the_same_view_both_get_it(tmp_path) -> None:
    """As programs do when they start; only another view of that name is refused."""
    async with everlog.connect(tmp_path / "data") as first, everlog.connect(tmp_path / "data") as second:
        found = await asyncio.gather(*(log.documents.put_view("all~", "orders/{*}") for log in (first, second)))
        assert {view[:3] for view in found} == {("all~", "orders/{*}", None)}
        with pytest.raises(DocumentConflict, match="another view"):
            await second.documents.put_view("all~", "carts/{*}")


def test_two_servers_do_not_share_a_port() -> None:
    """Both could have the address as long as neither listens; the second would learn too late."""
    with listen("127.0.0.1", 0) as first, pytest.raises(PortTaken):
        listen("127.0.0.1", first.getsockname()[1])


async def test_a_server_whose_usual_port_is_taken_while_it_starts_takes_another_one(tmp_path) -> None:
    async with everlog.connect(tmp_path / "data") as log:
        with socket.socket() as usual:
            usual.bind(("127.0.0.1", 0))
            usual.listen()
            port = usual.getsockname()[1]
            async with serving(log, host="127.0.0.1", port=port, any_port=True) as url:
                assert not url.endswith(f":{port}")
            with pytest.raises(PortTaken):
                async with serving(log, host="127.0.0.1", port=port):
                    pass


async def write(folder: Path, number: int) -> None:
    async with everlog.connect(folder) as log:
        for value in range(3):
            await log.journal("orders").append(f"o-{number}", Event(value), expected=value)


async def read(folder: Path, number: int) -> None:
    async with everlog.connect(folder) as log:
        seen, ends = -1, time.monotonic() + 0.2
        while time.monotonic() < ends:
            found = await LocalJournal("orders", log.parts).pointer(f"o-{number - 1}") or 0  # a new one looks itself
            assert found >= seen
            seen = found


async def put(folder: Path, number: int) -> None:
    async with everlog.connect(folder) as log:
        await log.queue("jobs").put(f"{number}")
        await log.documents.put("shared", number)


async def project(folder: Path, number: int) -> None:
    async with everlog.connect(folder) as log:
        assert await log.projections.list() == []


def in_process(work: Callable[[Path, int], Awaitable[None]], folder: Path, number: int, begin: Any) -> None:
    """What went wrong is left beside the folder."""
    begin.wait(60)
    try:
        asyncio.run(work(folder, number))
    except BaseException:
        folder.with_name(f"{folder.name}-{number}").write_text(traceback.format_exc())


@pytest.mark.parametrize("works", [(write, read), (put, put), (project, write)], ids=["topic", "tables", "projections"])
def test_processes_that_open_a_new_folder_together_all_get_in(tmp_path, works) -> None:
    """Every file of a folder is made by whoever comes first, and others may come in the middle of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.client.test_concurrent_start"])
    for round_number in range(ROUNDS):
        folder, begin = tmp_path / f"data-{round_number}", context.Barrier(PROCESSES)
        processes = [
            context.Process(target=in_process, args=(works[number % 2], folder, number, begin))
            for number in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        failed = [found.read_text() for found in tmp_path.glob(f"{folder.name}-*")]
        assert not failed, failed[0]
        assert [process.exitcode for process in processes] == [0] * PROCESSES
