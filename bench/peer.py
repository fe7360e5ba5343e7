"""The other side: `eventsourcing` (pyeventsourcing) on SQLite, used as its documentation shows."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID, uuid4

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder

from bench.payloads import Payload
from bench.rounds import Round

FULL = 2
EVENT_TOPIC = "bench.peer:Order.ItemAdded"


class Order(Aggregate):
    """An aggregate whose events carry a payload and change one number."""

    def __init__(self) -> None:
        self.total = 0

    class ItemAdded(Aggregate.Event):
        data: dict[str, Any]

        def apply(self, aggregate: Aggregate) -> None:
            cast("Order", aggregate).total += self.data["quantity"]

    def add_item(self, data: Payload) -> None:
        self.trigger_event(self.ItemAdded, data=data)


class Orders(Application[UUID]):
    """An application with the defaults of the library: JSON, no cipher, no compressor, no cache."""


class Peer:
    """An application on one SQLite file."""

    def __init__(self, path: Path) -> None:
        self.app = Orders(
            env={
                "PERSISTENCE_MODULE": "eventsourcing.sqlite",
                "SQLITE_DBNAME": str(path),
                # On a slow disk many threads wait long: let them, rather than fail.
                "SQLITE_LOCK_TIMEOUT": "60",
            }
        )
        self.recorder = cast("SQLiteApplicationRecorder", self.app.recorder)
        self.recorder.datastore.pool.pool_timeout = 60.0
        self._check_durability()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.app.close()

    def _check_durability(self) -> None:
        """SQLite's own default, which the library leaves alone, must be the one that Everlog sets."""
        found = []
        with self.recorder.datastore.get_connection(commit=False) as connection:
            for name in ("synchronous", "journal_mode"):
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA {name}")
                found.append(cursor.fetchone()[0])
        if found != [FULL, "wal"]:
            raise RuntimeError(
                f"eventsourcing has synchronous, journal_mode = {found}, not FULL and WAL: "
                "the comparison would not be fair"
            )

    def new_orders(self, count: int) -> list[Order]:
        orders = [Order() for _ in range(count)]
        self.app.save(*orders)
        return orders

    def filled_order(self, payloads: Sequence[Payload], events: int) -> UUID:
        """An order with this number of events; the first one says that it was created."""
        order = Order()
        for payload in itertools.islice(itertools.cycle(payloads), events - 1):
            order.add_item(payload)
        self.app.save(order)
        return order.id


class OrderWriters:
    """Orders that are saved, one event each time. The library checks versions by its primary key."""

    def __init__(self, peer: Peer, count: int, payloads: Sequence[Payload]) -> None:
        self._peer = peer
        self._orders = peer.new_orders(count)
        self._payloads = payloads

    def one_after_another(self, appends: int) -> Round:
        return timed(lambda number: self._save(self._orders[number % len(self._orders)], number), appends)

    def in_threads(self, appends: int, threads: int) -> Round:
        """Each thread has orders of its own, so that none meets a conflict."""
        shares = [self._orders[at::threads] for at in range(threads)]
        each = max(1, appends // threads)

        def work(share: Sequence[Order]) -> list[float]:
            return timed(lambda number: self._save(share[number % len(share)], number), each).latencies

        with ThreadPoolExecutor(threads) as pool:
            # Threads are started before the clock is.
            list(pool.map(time.sleep, [0.01] * threads))
            started = time.perf_counter()
            latencies = [seconds for found in pool.map(work, shares) for seconds in found]
            elapsed = time.perf_counter() - started
        return Round(len(latencies), elapsed, latencies)

    def _save(self, order: Order, number: int) -> None:
        order.add_item(self._payloads[number % len(self._payloads)])
        self._peer.app.save(order)


class RecorderWriters:
    """The level below: rows straight into the library's table, without aggregates or a transcoder."""

    def __init__(self, peer: Peer, count: int, payloads: Sequence[Payload]) -> None:
        self._recorder = peer.recorder
        self._versions = dict.fromkeys((uuid4() for _ in range(count)), 0)
        self._ids = list(self._versions)
        self._payloads = payloads

    def one_after_another(self, appends: int) -> Round:
        return timed(self._insert, appends)

    def _insert(self, number: int) -> None:
        order = self._ids[number % len(self._ids)]
        self._versions[order] += 1
        state = json.dumps(self._payloads[number % len(self._payloads)], separators=(",", ":")).encode()
        self._recorder.insert_events([StoredEvent(order, self._versions[order], EVENT_TOPIC, state)])


def timed(work: Callable[[int], None], times: int) -> Round:
    """Run `work` this number of times, and time each."""
    clock, latencies = time.perf_counter, []
    started = clock()
    for number in range(times):
        before = clock()
        work(number)
        latencies.append(clock() - before)
    return Round(times, clock() - started, latencies)
