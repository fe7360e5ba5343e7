"""Two hundred writers on twenty documents through three servers, one of which is killed every few seconds."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx

import everlog
from tests.documents.node_support import C, Fleet, revision_of
from tests.faults.history import check

DOCUMENTS, WRITERS, SERVERS = 20, 200, 3


async def load(nodes: Fleet, *, seconds: float, every: float, seed: int) -> list[dict[str, Any]]:
    """The history of a run. An error is an unknown outcome: the write may have happened."""
    chance = random.Random(seed)
    servers = await asyncio.to_thread(nodes.start, SERVERS)
    ends = time.monotonic() + seconds
    operations: list[dict[str, Any]] = []

    async def write(http: httpx.AsyncClient, writer: int) -> None:
        number = 0
        while time.monotonic() < ends:
            number += 1
            key, value = f"d{chance.randrange(DOCUMENTS)}", f"{writer}-{number}"
            operation = {"op": "append", "key": key, "value": value, "outcome": "unknown"}
            operations.append(operation)
            url = f"{chance.choice(servers).url}{C}{key}"
            try:
                answer = await http.put(url, content=f'"{value}"', headers={"Hyperbus-Message-Id": value})
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code in (200, 201):
                operation |= {"outcome": "ok", "seq_nr": revision_of(answer)}
            else:
                assert answer.status_code in (503, 504), answer.text

    async def kill() -> None:
        while time.monotonic() < ends - every:
            await asyncio.sleep(every)
            victim = servers.pop(chance.randrange(SERVERS))
            victim.kill()
            servers.extend(await asyncio.to_thread(nodes.start))

    limits = httpx.Limits(max_connections=WRITERS, max_keepalive_connections=WRITERS)
    async with httpx.AsyncClient(timeout=40, limits=limits) as http:
        await asyncio.gather(*[write(http, number) for number in range(WRITERS)], kill())
    return operations


async def verify(nodes: Fleet, operations: list[dict[str, Any]]) -> int:
    """Revisions 1 to n without hole or double, and the feed is what was accepted; how many writes were."""
    final: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    async with everlog.connect(nodes.config) as log:
        await (await log.documents.open()).recovery.everything()
        for key in {operation["key"] for operation in operations}:
            events = [event async for event in log.documents.history(key)]
            assert [event.revision for event in events] == list(range(1, len(events) + 1))
            final[key] = [event.body for event in events]
            places |= {event.body: event.revision for event in events}
            if events:
                found = await log.documents.get(key)
                assert (found.revision, found.body) == (len(events), events[-1].body)
    findings = check(operations, final)
    assert not findings, findings
    accepted = [one for one in operations if one["outcome"] == "ok"]
    assert not [one for one in accepted if places[one["value"]] != one["seq_nr"]]
    return len(accepted)
