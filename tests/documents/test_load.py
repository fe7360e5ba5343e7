"""Many writers on few documents through several processes, some of them killed: the feed is what was accepted."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.documents.completer import Completer
from everlog.documents.evaluator import Evaluator
from everlog.documents.model import DocumentTransaction
from tests.documents.load_process import DOCUMENTS
from tests.support import ManualClock
from tests.waiting import until


def start(folder: Path, name: str, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.documents.load_process", str(folder), name, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def load(folder: Path) -> list[Any]:
    lines = [line for path in folder.glob("history-*.jsonl") for line in path.read_text().splitlines()]
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the last line of a killed process
    return found


def run(folder: Path, *, seconds: float, kills: int) -> None:
    """Three processes at a time; now and then one is killed and another takes its place."""
    chance = random.Random(kills)
    processes = [start(folder, f"p{number}", seconds) for number in range(3)]
    ends = time.monotonic() + seconds
    for number in range(kills):
        history = folder / f"history-p{number + 2}.jsonl"
        while history.stat().st_size < 3000 and time.monotonic() < ends:
            time.sleep(0.01)  # until the youngest one is at work
        victim = processes.pop(chance.randrange(3))
        victim.kill()
        victim.wait()
        assert victim.stdout is not None
        victim.stdout.close()
        processes.append(start(folder, f"p{number + 3}", max(1.0, ends - time.monotonic())))
    for process in processes:
        assert process.wait(120) == 0
        assert process.stdout is not None
        process.stdout.close()


async def check(folder: Path) -> int:
    """Revisions 1 to n without hole or double; every acknowledged write is there, at its revision, once."""
    history = load(folder)
    asked = {value: path for outcome, path, value, _ in history if outcome == "unknown"}
    accepted = {value: (path, revision) for outcome, path, value, revision in history if outcome == "ok"}
    async with everlog.connect(folder) as log:
        await (await log.documents.open()).recovery.everything()
        seen: dict[str, tuple[str, int]] = {}
        for number in range(DOCUMENTS):
            path = f"d{number}"
            events = [event async for event in log.documents.history(path)]
            assert [event.revision for event in events] == list(range(1, len(events) + 1))
            for event in events:
                assert event.body not in seen, "applied twice"
                assert asked[event.body] == path, "nobody asked for this"
                seen[event.body] = (path, event.revision)
            if events:
                found = await log.documents.get(path)
                assert (found.revision, found.body) == (len(events), events[-1].body)
    assert not {value: place for value, place in accepted.items() if seen.get(value) != place}
    return len(accepted)


async def test_three_processes_one_killed(tmp_path: Path) -> None:
    run(tmp_path, seconds=4, kills=1)
    assert await check(tmp_path) > 50


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_many_kills(tmp_path: Path) -> None:
    run(tmp_path, seconds=30, kills=15)
    assert await check(tmp_path) > 500


class _Outbox:
    """Two documents with two events each; hands out what is not completed."""

    def __init__(self) -> None:
        self.left = {
            uri: [DocumentTransaction(uri, "", revision, "", "{}") for revision in (1, 2)] for uri in ("a", "b")
        }

    async def pending(self, uri: str, *, limit: int) -> list[DocumentTransaction]:
        return self.left[uri][:1]  # one at a time: two tasks per document

    async def complete(self, uri: str, transactions: list[DocumentTransaction], now_ms: int) -> None:
        self.left[uri] = [one for one in self.left[uri] if one not in transactions]


class _Meeting:
    """A publisher that lets nobody go on before both documents are at it: a sequential run would never end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.done: list[tuple[str, int]] = []
        self.both = asyncio.Event()

    async def publish(self, transaction: DocumentTransaction) -> None:
        assert transaction.uri not in self.running, "two runs of one document at once"
        self.running.append(transaction.uri)
        if len(self.running) == 2:
            self.both.set()
        await self.both.wait()
        await asyncio.sleep(0)
        self.running.remove(transaction.uri)
        self.done.append((transaction.uri, transaction.revision))


@pytest.mark.case("hyperstorage", 69)
async def test_documents_are_completed_side_by_side_each_by_one_worker() -> None:
    """Two documents, two tasks each, two workers: both first tasks run together, the second ones after them."""
    outbox, publisher = _Outbox(), _Meeting()
    completer = Completer(outbox, publisher, clock=ManualClock(), max_completers=2, evaluator=Evaluator())  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        for uri in ("a", "b"):
            completer.kick(uri)
        await completer.idle()
        assert sorted(publisher.done) == [("a", 1), ("b", 1)]
        for uri in ("a", "b", "a", "b"):
            completer.kick(uri)
        both = [completer.complete(uri) for uri in ("a", "a", "b")]
        await asyncio.gather(*both)
        await completer.close()
    assert sorted(publisher.done) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert [revision for uri, revision in publisher.done if uri == "a"] == [1, 2]


class _EndingOutbox:
    """Nothing is pending; a write of another document comes in the moment in which the only worker ends."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.completer: Completer | None = None

    async def pending(self, uri: str, *, limit: int) -> list[DocumentTransaction]:
        self.asked.append(uri)
        if uri == "a":
            assert self.completer is not None
            asyncio.get_running_loop().call_soon(self.completer.kick, "b")
        return []


async def test_a_document_that_comes_while_a_worker_ends_is_completed() -> None:
    """Its events would wait for the recovery otherwise, which is minutes away."""
    outbox = _EndingOutbox()
    outbox.completer = Completer(
        outbox,
        _Meeting(),
        clock=ManualClock(),
        max_completers=1,
        evaluator=Evaluator(),  # type: ignore[arg-type]
    )
    outbox.completer.kick("a")
    await until(lambda: outbox.completer.waiting == 0)
    assert outbox.asked == ["a", "b"]
