"""Projections: events per second for each strategy, and how soon a reader sees its own write in a view."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import msgspec

import everlog
from bench.embedded import TOPIC, Embedded
from bench.filler import HOW, Filler
from bench.payloads import Payload, make_payloads
from bench.projection_peer import MemoryProjection, ProjectionPeer, TableProjection
from bench.report import Line, Target, line_of, milliseconds, relate
from bench.rounds import Contender, Laps, Round, alternate
from bench.servers import postgres
from bench.settings import Settings
from everlog import Projection, at_least_once, at_most_once, exactly_once, flow, grouped, records, tag
from everlog.projections.record_source import LoggedRecord
from everlog.testing.replication import replicate

UNIT = "events/s"
NAME = "projections"
TAG = "order"
FEW = "few-orders"
KEYS = 500
PER_TRANSACTION = 100
TABLE = "CREATE TABLE IF NOT EXISTS totals (product TEXT PRIMARY KEY, quantity INTEGER NOT NULL)"
ADD = "INSERT INTO totals VALUES (?1, ?2) ON CONFLICT (product) DO UPDATE SET quantity = quantity + ?2"
TIMES_FASTER = 3

decode = msgspec.json.Decoder().decode


class Handler:
    """Adds up quantities by product; knows when the first event came, and when the last."""

    def __init__(self, wanted: int) -> None:
        self.counted: Counter[str] = Counter()
        self.laps = Laps(wanted)
        self.done = asyncio.Event()

    def see(self) -> None:
        if self.laps.see():
            self.done.set()

    def add(self, payload: Payload) -> None:
        self.counted[payload["product"]] += payload["quantity"]

    async def record(self, record: LoggedRecord) -> None:
        self.see()
        for event in record.events:
            assert event.data is not None
            self.add(decode(event.data))

    async def group(self, group: Sequence[LoggedRecord]) -> None:
        for record in group:
            await self.record(record)

    async def flow(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for item in items:
            await self.record(item.envelope)
            yield item

    async def tagged(self, event: Any) -> None:
        self.see()
        self.add(event.payload)

    async def in_table(self, record: LoggedRecord, view: Any) -> None:
        self.see()
        for event in record.events:
            assert event.data is not None
            payload = decode(event.data)
            await view.execute(ADD, payload["product"], payload["quantity"])


def projections(settings: Settings) -> list[Line]:
    """Each strategy with its defaults, over events that wait already; then wake-ups."""
    payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
    with postgres(settings.folder) as server, Embedded(settings.folder / NAME) as side:
        peer = ProjectionPeer(server)
        peer.fill(payloads, settings.projection_peer_events)
        runs = ProjectionRuns(side, settings, payloads)
        side.run(runs.fill())
        contenders = runs.contenders()
        bare, in_tables = runs.bare_contenders()
        others = [
            Contender("eventsourcing: in memory, tracking every 100 events", partial(peer.run, MemoryProjection)),
            Contender("eventsourcing: row and tracking in one transaction", partial(peer.run, TableProjection)),
        ]
        alternate([*contenders.values(), bare, in_tables, *others], settings.rounds)
        own = {name: line_of(NAME, one, UNIT, filled=HOW) for name, one in contenders.items()}
        rest = [line_of(NAME, one, UNIT) for one in (bare, in_tables, *others)]
        for line in rest[2:]:
            line.details |= {"server": server.about, "events": peer.events}
        lines = _compare(own, *rest)
        lines += _waits(settings, side, peer, payloads)
    return lines


def _compare(own: dict[str, Line], bare: Line, in_tables: Line, memory: Line, table: Line) -> list[Line]:
    """In memory against in memory, a table against a table."""
    for name, loop, peer in (("at least once", bare, memory), ("exactly once", in_tables, table)):
        relate(own[name], [loop, peer])
        assert peer.ratio is not None
        own[name].target = Target(f"{NAME}: {name}, times {peer.who}", peer.ratio, TIMES_FASTER, "at least", "x")
    return [*own.values(), bare, in_tables, memory, table]


class ProjectionRuns:
    """Rounds of Everlog: a projection of a new name each time, so that it begins at the beginning."""

    def __init__(self, side: Embedded, settings: Settings, payloads: list[Payload]) -> None:
        self._side = side
        self._settings = settings
        self._payloads = payloads
        self._rounds = itertools.count()
        self._envelopes: list[LoggedRecord] = []

    async def fill(self) -> None:
        """Two topics, one for the strategies that wait for the disk for every event; the views by tag as well."""
        for topic, events in ((TOPIC, self._settings.projection_events), (FEW, self._settings.projection_few_events)):
            filler = Filler(
                self._side.log, topic, self._settings.seed, self._payloads, [(TAG,)] if topic == TOPIC else ((),)
            )
            await filler.open(KEYS)
            filler.fill(events)
        await replicate(self._side.log)

    def contenders(self) -> dict[str, Contender]:
        many, few = self._settings.projection_events, self._settings.projection_few_events
        kinds: dict[str, tuple[Any, Any, Callable[[Handler], Any], int]] = {
            "at least once": (records(TOPIC), at_least_once(), lambda handler: handler.record, many),
            "at least once, by tag": (tag(TAG), at_least_once(), lambda handler: handler.tagged, many),
            "grouped": (records(TOPIC), grouped(), lambda handler: handler.group, many),
            "flow": (records(TOPIC), flow(), lambda handler: handler.flow, many),
            "at most once": (records(FEW), at_most_once(), lambda handler: handler.record, few),
            "exactly once": (records(TOPIC), exactly_once(), lambda handler: handler.in_table, many),
        }
        return {name: Contender(f"Everlog: {name}", partial(self._round, name, *kind)) for name, kind in kinds.items()}

    def _round(self, name: str, source: Any, strategy: Any, choose: Callable[[Handler], Any], events: int) -> Round:
        return self._side.run(self._project(name, source, strategy, choose, events))

    async def _project(
        self, name: str, source: Any, strategy: Any, choose: Callable[[Handler], Any], events: int
    ) -> Round:
        handler = Handler(events)
        log = self._side.log
        view = log.projections.view(name)
        in_table = name == "exactly once"
        if in_table:
            await view.execute(TABLE)
            await view.execute("DELETE FROM totals")
        unique = f"{name.replace(' ', '-')}-{next(self._rounds)}"
        projection = Projection(unique, source=source, handler=choose(handler), strategy=strategy)
        async with log.projections.run(projection):
            await handler.done.wait()
        total = (await view.fetch("SELECT sum(quantity) FROM totals"))[0][0] if in_table else handler.counted.total()
        self._check(name, total, events)
        return handler.laps.round

    def _check(self, name: str, total: int, events: int) -> None:
        wanted = sum(self._payloads[number % len(self._payloads)]["quantity"] for number in range(events))
        if total != wanted:
            raise RuntimeError(f"{name}: the total is {total}, not {wanted}")

    def bare_contenders(self) -> tuple[Contender, Contender]:
        return (
            Contender("a bare loop: the same handler over a list", self._bare),
            Contender(f"a bare loop: the same rows, {PER_TRANSACTION} per transaction", self._bare_table),
        )

    async def _read(self) -> list[LoggedRecord]:
        """What the projections get, in memory."""
        if not self._envelopes:
            seen: list[LoggedRecord] = []
            everything = asyncio.Event()

            async def take(record: LoggedRecord) -> None:
                seen.append(record)
                if len(seen) == self._settings.projection_events:
                    everything.set()

            async with self._side.log.projections.run(Projection("reading", source=records(TOPIC), handler=take)):
                await everything.wait()
            self._envelopes = seen
        return self._envelopes

    def _bare(self) -> Round:
        return self._side.run(self._loop())

    async def _loop(self) -> Round:
        envelopes = await self._read()
        handler = Handler(len(envelopes))
        handle: Callable[[LoggedRecord], Awaitable[None]] = handler.record
        started = time.perf_counter()
        for envelope in envelopes:
            await handle(envelope)
        elapsed = time.perf_counter() - started
        self._check("the bare loop", handler.counted.total(), len(envelopes))
        return Round(len(envelopes), elapsed)

    def _bare_table(self) -> Round:
        envelopes = self._side.run(self._read())
        path = self._settings.folder / f"bare-{next(self._rounds)}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", TABLE):
                connection.execute(statement)
            started = time.perf_counter()
            for number, envelope in enumerate(envelopes):
                if number % PER_TRANSACTION == 0:
                    connection.execute("BEGIN IMMEDIATE")
                for event in envelope.events:
                    assert event.data is not None
                    payload = decode(event.data)
                    connection.execute(ADD, (payload["product"], payload["quantity"]))
                if number % PER_TRANSACTION == PER_TRANSACTION - 1:
                    connection.execute("COMMIT")
            if connection.in_transaction:
                connection.execute("COMMIT")
            elapsed = time.perf_counter() - started
            (total,) = connection.execute("SELECT sum(quantity) FROM totals").fetchone()
        path.unlink()
        self._check("the bare loop", total, len(envelopes))
        return Round(len(envelopes), elapsed)


def _waits(settings: Settings, side: Embedded, peer: ProjectionPeer, payloads: list[Payload]) -> list[Line]:
    samples = settings.latency_warm_up_samples + settings.projection_waits
    own = side.run(_wait_for_own(side, payloads, samples))[settings.latency_warm_up_samples :]
    theirs = peer.waits(payloads, samples)[settings.latency_warm_up_samples :]
    found = {"Everlog: append acknowledged → view.wait(token)": own, "eventsourcing: saved → runner.wait": theirs}
    return [
        Line(NAME, who, milliseconds=milliseconds(times), details={"samples": len(times)})
        for who, times in found.items()
    ]


async def _wait_for_own(side: Embedded, payloads: list[Payload], samples: int) -> list[float]:
    """One append after another, each until the view has it; the projection runs in this process."""
    topic, found = "waited-for", []
    view = side.log.projections.view("waited-for")
    await view.execute(TABLE)
    journal = side.log.journal(topic)
    handler = Handler(samples)
    projection = Projection("waited-for", source=records(topic), handler=handler.in_table, strategy=exactly_once())
    async with side.log.projections.run(projection):
        for number in range(samples):
            token = await journal.append(f"order-{number % 10}", everlog.Event(payloads[number % len(payloads)]))
            acknowledged = time.perf_counter()
            await view.wait(token)
            found.append(time.perf_counter() - acknowledged)
    return found
