"""A log with something of everything, served from a thread of its own: what the console's tests look at."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import everlog
from everlog.api import Everlog
from everlog.cli.sample import load_sample
from everlog.client import connect
from everlog.config import Config, LogConfig, ProjectionsConfig, ServerConfig, StoreConfig
from everlog.console.server import serving
from everlog.core.events import Event
from everlog.core.values import partition_of
from everlog.documents.indexes import IndexNew, IndexSortItem
from everlog.errors import Conflict, Unreachable
from everlog.pipeline.phases import PHASES, SlowKey
from everlog.pipeline.status import CycleStatus, PipelineStatus, save_pipeline_status
from everlog.projections.recovery import Recovery
from everlog.projections.strategies import at_least_once
from everlog.queues.priority import Priority
from everlog.testing.replication import replicate
from tests.support import broken_record, produce_raw

T = TypeVar("T")

VISITS = 20

HOSTILE = "<script>alert(1)</script>'\"&lt;"


def config_of(folder: Path, *, writable: bool) -> Config:
    return Config(
        data=str(folder),
        log=LogConfig(synchronous="NORMAL"),
        store=StoreConfig(synchronous="NORMAL"),
        projections=ProjectionsConfig(lease_s=1.0),
        server=ServerConfig(writable=writable),
    )


class Gate:
    """Lets handlers through; once it is closed, only so many more until it opens."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._open = asyncio.Event()

    async def __call__(self) -> None:
        if self._left is None:
            return
        if self._left > 0:
            self._left -= 1
            return
        await self._open.wait()

    async def close(self, after: int) -> None:
        self._left = after
        self._open.clear()

    async def open(self) -> None:
        self._left = None
        self._open.set()


def measured(now: int) -> dict[str, Any]:
    """Where a pipeline's time went: cycles of all phases, of which the eighth of twelve took long."""
    shares = {phase.name: 1 + 5 * (at % 4) for at, phase in enumerate(PHASES)}
    slow = [SlowKey("orders", name, 9.75 / at, 40, 80, 12, now) for at, name in enumerate(("order-1", HOSTILE), 1)]
    cycles = []
    for number in range(12):
        scale = 4.0 if number == 7 else 1 + number % 3 / 4
        phases = {name: share * scale / 4 for name, share in shares.items()}
        cycles.append(CycleStatus(now - 1000 * (12 - number), sum(phases.values()) + 1, 50, phases, {"journal": 80}))
    return {"rows": {"journal": 24_680, "metajournal": 1_200}, "recent": cycles, "slowest": slow}


class World:
    """The open log, the address of its server, and a way to do things on its event loop."""

    def __init__(self, folder: Path, *, writable: bool = True) -> None:
        self.config = config_of(folder, writable=writable)
        self.log: Everlog
        self.url = ""
        self.gate = Gate()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._running: AsyncExitStack
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()], name="world")

    def __enter__(self) -> World:
        self._thread.start()
        assert self._ready.wait(60), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        left = asyncio.all_tasks(self._loop)
        self._loop.close()
        # Else the garbage collector finds them during a test that has nothing to do with them.
        assert not left, "the log and its server end what they begin"

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        try:
            async with (
                connect(self.config) as self.log,
                serving(self.log, host="127.0.0.1", port=0) as self.url,
                AsyncExitStack() as self._running,
            ):
                self._ready.set()
                await self._stop.wait()
        finally:
            self._ready.set()

    def do(self, work: Awaitable[T]) -> T:
        """Run a coroutine beside the server."""

        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(120)

    # What a page may have to say

    async def say(self, state: str = "running", **facts: Any) -> None:
        """The pipeline's last word."""
        now = int(time.time() * 1000)
        known = {"pid": 4711, "host": "lab", "started_ms": now - 600_000, "cycles": 120, "records": 240, "events": 200}
        known |= {"cycle_ms_p50": 42.0, "last_cycle_ms": 38.0, **measured(now)}
        said = PipelineStatus(**{"state": state, **known, **facts})
        await save_pipeline_status(self.log.parts.store, said, facts.get("updated_ms") or now)

    async def run(self, *projections: Any) -> Any:
        """Run projections until the server ends."""
        return await self._running.enter_async_context(self.log.projections.run(*projections))

    async def poison(self, topic: str, journal_id: str) -> int:
        """A record that cannot be decoded; its journal is halted from then on."""
        partition = partition_of(journal_id.encode(), self.config.log.partitions)
        now = int(time.time() * 1000)
        record = broken_record(0, key=journal_id.encode(), partition=partition, timestamp=now)
        return await produce_raw(self.log, topic, record)

    @contextmanager
    def without_store(self) -> Iterator[None]:
        """The store does not answer: every call fails as it does when its servers are gone."""
        parts = self.log._parts
        assert parts is not None
        self.log._parts = dataclasses.replace(parts, store=Gone(parts.store))
        try:
            yield
        finally:
            self.log._parts = parts


class Gone:
    """A store whose servers are gone."""

    def __init__(self, store: Any) -> None:
        self.tags = None if store.tags is None else Gone(_Nothing)

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: Any, **__: Any) -> Any:
            raise Unreachable("no node of 10.0.0.1:9042 answers")

        return fail


class _Nothing:
    tags = None


async def fill(log: Everlog) -> None:
    """Journals, tags, queues, documents; part of it only in the tail."""
    await load_sample(log)
    orders = log.journal("orders")
    with suppress(Conflict):
        await orders.append("order-2", Event({"type": "late"}), expected=1, verdict=True)
    await orders.append("order-1", Event(HOSTILE, tags={"eu", "<b>bold</b>"}))
    await orders.append(HOSTILE, Event({"note": HOSTILE}, tags={"eu"}))
    await replicate(log)
    for number in range(3):
        await orders.append("order-1", Event({"type": "returned", "parcel": number}, tags={"eu"}))
    await orders.mark("order-1", "checked")
    await fill_queues(log)
    await fill_documents(log)


async def fill_queues(log: Everlog) -> None:
    mails, pages = log.queue("mails"), log.queue("pages")
    await mails.declare(description="Letters to customers", max_timeouts=3, rate_limit="100/s")
    for number in range(12):
        await mails.put(f"mail-{number}", {"to": f"customer-{number}"}, priority=Priority.UPDATES if number % 3 else 20)
    await mails.put("later", {"to": "nobody"}, delay="2h")
    await mails.put(HOSTILE, {"to": HOSTILE})
    for number in range(4):
        await mails.put(f"bad-{number}", {"to": None}, priority=0)
    for job in await mails.claim(4, owner="worker-1"):
        await mails.fail(job, f"no such address {HOSTILE}", retry=False)
    await mails.claim(2, owner="worker-1", lease="10m")
    await pages.put("page-1", "text")
    await log.queue("reports").declare(max_in_flight=1)


async def fill_documents(log: Everlog) -> None:
    docs = log.documents
    await docs.put("articles/hello", {"title": "Hello", "words": 120})
    await docs.patch("articles/hello", {"words": 130, "author": "ann"})
    await docs.patch("articles/hello", {"author": None, "title": HOSTILE}, wait=True)
    await docs.put("goods~")
    for number, name in enumerate(("tea", "coffee", "cocoa", "honey", "bread")):
        await docs.put(f"goods~/{name}", {"price": 3 + 7 * number % 11, "stock": number}, wait=True)
    await docs.create_index("goods~", IndexNew("by-price", (IndexSortItem("price", "decimal", "desc"),)))
    await docs.build_indexes()


def make_projections() -> list[Any]:
    """One that gives up on hostile events and keeps them, one that is stuck at the first of them."""

    async def count(event: Any) -> None:
        if isinstance(event.payload, str):
            raise ValueError(f"no total in {HOSTILE}")

    saving = at_least_once(save_every=1)
    source = everlog.tag("eu")
    return [
        everlog.Projection("totals", source=source, handler=count, strategy=saving, recovery=Recovery.skip()),
        everlog.Projection(
            "parcels", source=source, handler=count, strategy=saving, recovery=Recovery.retry_and_fail(100_000, 0.2)
        ),
    ]


async def until(holds: Any, seconds: float = 60.0) -> None:
    """Wait for a condition, which may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def fill_projections(world: World) -> None:
    log = world.log
    await world.run(*make_projections())

    async def stuck() -> bool:
        found = {one.name: one for one in await log.projections.list()}
        return len(found) == 2 and found["totals"].dead_letters == 1 and found["parcels"].failing is not None

    await until(stuck)


async def fill_view(world: World) -> None:
    """A projection whose view is in the store, at work; and one that nobody runs any more."""
    log, visits = world.log, world.log.journal("visits")
    await log.projections.view("visits").execute("CREATE TABLE visits (key TEXT, place TEXT)")
    for number in range(VISITS):
        token = await visits.append(f"v-{number % 4}", Event(number))

    async def note(record: Any, view: Any) -> None:
        await world.gate()
        await view.execute("INSERT INTO visits VALUES (?, ?)", record.key, f"{record.partition}:{record.offset}")

    async def forget(record: Any) -> None: ...

    source, saving = everlog.records("visits"), at_least_once(save_every=1)
    await world.run(everlog.Projection("visits", source=source, handler=note, strategy=saving, tables=["visits"]))
    async with log.projections.run(everlog.Projection("left", source=source, handler=forget)):
        await log.projections.wait("left", token)

    async def filled() -> bool:
        (one,) = await log.projections.list("visits")
        return one.lag is not None and not one.lag.events

    await until(filled)
