"""Kill -9 of writing processes at labelled points: no event is lost, doubled or out of order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.documents.api import Documents
from everlog.documents.bodies import merge
from everlog.documents.paths import parse_path
from everlog.errors import DocumentNotFound
from everlog.runtime.failpoints import COPY_INTO_VIEW_POINTS, DOCUMENT_POINTS, VARIABLE
from tests.documents.writer_process import URIS, target

# On SQLite outbox and content are one transaction: there is no point between them.
POINTS = [point for point in (*DOCUMENT_POINTS, *COPY_INTO_VIEW_POINTS) if point != "documents.outboxed"]


def write(folder: Path, name: str, *, die_at: str | None = None, count: int = 5) -> int:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if die_at is not None:
        environment[VARIABLE] = die_at
    command = [sys.executable, "-m", "tests.documents.writer_process", str(folder), name, str(count)]
    return subprocess.run(command, env=environment, timeout=120, check=False).returncode


def nth(point: str, times: int) -> str:
    """The point at so many times. What a view cannot show is noted once for all writes that are completed together:
    how often a process gets there depends on the machine.
    """
    return f"{point}:{1 if point == 'documents.unshown' else times}"


def acknowledged(folder: Path) -> list[Any]:
    lines = [line for path in folder.glob("acknowledged-*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


async def check(folder: Path) -> None:
    """After a restart, everything fits together."""
    async with everlog.connect(target(str(folder))) as log:
        docs = log.documents
        await (await docs.open()).recovery.everything()
        known = {path: await _follow(docs, path) for path in URIS}
        for path, revision, method, body in acknowledged(folder):
            event = known[parse_path(path).uri][revision]
            assert event.path == path
            assert event.method == ("feed:put" if method == "post" else f"feed:{method}")
            assert {**event.body, **body} == event.body
        page = await docs.list("c~", filter="n >= 0", sort="n", size=1000, explain=True)
        assert page.explanation is not None
        assert page.explanation.index == "by-n"
        plain = [one for one in (await docs.list("c~", size=1000)).elements if one["n"] >= 0]
        assert page.elements == sorted(plain, key=lambda one: (one["n"], one["id"]))
        assert not [one for uri in URIS for one in await docs.pending(uri)]
        await check_views(docs)


async def check_views(docs: Documents) -> None:
    """Each view shows its sources as they are; what it cannot show is set aside, once."""
    plain = (await docs.list("c~", size=1000)).elements
    assert (await docs.list("v~", size=1000)).elements == plain
    with contextlib.suppress(DocumentNotFound):
        assert (await docs.list("g~")).elements == []
    assert [(one.source, one.code) for one in await docs.unshown("u~")] == [("d:e/x", "ambiguous-id")]
    assert [one.status for one in await docs.views()] == ["ready", "ready", "ready"]


async def _follow(docs: Documents, uri: str) -> dict[int, Any]:
    """The events of a document lead, without a gap, to what is stored."""
    events = [event async for event in docs.history(uri)]
    assert [event.revision for event in events] == list(range(1, len(events) + 1))
    state: dict[str, Any] = {}
    for event in events:
        state[event.path] = event.body if event.method == "feed:put" else merge(state[event.path], event.body)
    if uri.endswith("~"):
        page = await docs.list(uri, size=1000)
        assert page.revision == len(events)
        assert {f"{uri}/{one['id']}": one for one in page.elements} == state
    else:
        found = await docs.get(uri)
        assert (found.revision, found.body) == (len(events), state[uri])
    whole = Counter(event.correlation_id for event in events if event.correlation_id.startswith("batch-"))
    assert set(whole.values()) <= {3}
    return {event.revision: event for event in events}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.case("hyperstorage", 66, 67)
async def test_a_writer_is_killed(tmp_path: Path, point: str) -> None:
    """It dies at the third time it reaches the point; another one goes on, and recovery completes the rest."""
    assert write(tmp_path, "first", die_at=nth(point, 3)) == -signal.SIGKILL
    before = len(acknowledged(tmp_path))
    assert before < 35
    assert write(tmp_path, "second", count=2) == 0
    await check(tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
async def test_writers_are_killed_one_after_the_other(tmp_path: Path, point: str) -> None:
    """Each goes on where the one before it died, and dies after more or fewer writes."""
    for number, times in enumerate((8, 1, 5, 1, 13, 2)):
        assert write(tmp_path, f"w{number}", die_at=nth(point, times), count=10) == -signal.SIGKILL
    assert write(tmp_path, "last", count=1) == 0
    await check(tmp_path)
