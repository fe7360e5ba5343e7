"""Replay: one long journal from the tables, payloads decoded, folded into one number."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from uuid import UUID

from bench.embedded import TOPIC, Embedded
from bench.filler import HOW, Filler
from bench.payloads import Payload, make_payloads
from bench.peer import Order, Peer
from bench.report import Line, compare, line_of
from bench.rounds import Contender, Round, alternate
from bench.settings import Settings
from everlog.testing.replication import replicate

JOURNAL = "order-0"
UNIT = "events/s"


def replay(settings: Settings) -> list[Line]:
    """Both sides end with the same number, or nothing is reported."""
    payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
    events = settings.replay_events
    with Embedded(settings.folder / "replay") as side, Peer(settings.folder / "replay-peer.db") as peer:
        side.run(_fill(side, settings, payloads))
        order = peer.filled_order(payloads, events + 1)
        total = sum(payloads[number % len(payloads)]["quantity"] for number in range(events))
        contenders = [
            _contender("Everlog: read", lambda: side.run(_read(side)), events, total),
            _contender("Everlog: read_pages", lambda: side.run(_read_pages(side)), events, total),
            _contender("eventsourcing: repository.get", lambda: _get(peer, order), events, total),
            _contender("eventsourcing: recorder, json.loads", lambda: _select(peer, order), events, total),
        ]
        alternate(contenders, settings.rounds)
    own, pages, got, selected = (line_of("replay", one, UNIT, events=events, filled=HOW) for one in contenders)
    lines = compare(own, [got, selected], against=got, at_least=8)
    return [lines[0], pages, *lines[1:]]


def _contender(name: str, work: Callable[[], int], events: int, total: int) -> Contender:
    def run() -> Round:
        started = time.perf_counter()
        found = work()
        elapsed = time.perf_counter() - started
        if found != total:
            raise RuntimeError(f"{name}: the total is {found}, not {total}")
        return Round(events, elapsed, [elapsed])

    return Contender(name, run)


async def _fill(side: Embedded, settings: Settings, payloads: list[Payload]) -> None:
    filler = Filler(side.log, TOPIC, settings.seed, payloads)
    await filler.open(1)
    filler.fill(settings.replay_events)
    await replicate(side.log)
    head = await side.log.parts.store.head(side.journal.log_name, JOURNAL)
    assert head is not None
    assert head.seq_nr == settings.replay_events


async def _read(side: Embedded) -> int:
    total = 0
    async for event in side.journal.read(JOURNAL):
        total += event.payload["quantity"]
    return total


async def _read_pages(side: Embedded) -> int:
    total = 0
    async for page in side.journal.read_pages(JOURNAL):
        for event in page:
            total += event.payload["quantity"]
    return total


def _get(peer: Peer, order: UUID) -> int:
    found: Order = peer.app.repository.get(order)
    return found.total


def _select(peer: Peer, order: UUID) -> int:
    """Without the first event, which says only that the order was created."""
    rows = peer.recorder.select_events(order, gt=1)
    return sum(json.loads(row.state)["data"]["quantity"] for row in rows)
