"""The other side of projections: the runner of `eventsourcing` on PostgreSQL. Its SQLite has no subscriptions."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from psycopg.sql import SQL

from bench.payloads import Payload
from bench.peer import Order, Orders
from bench.rounds import Laps, Round
from bench.servers import Postgres

TABLE = "CREATE TABLE IF NOT EXISTS totals (product text PRIMARY KEY, quantity bigint NOT NULL)"
ADD = """
INSERT INTO totals VALUES (%s, %s)
ON CONFLICT (product) DO UPDATE SET quantity = totals.quantity + excluded.quantity
"""
WAIT_S = 300.0
EVENTS_PER_ORDER = 50


class Totals(PostgresTrackingRecorder):
    """A view as its documentation shows: rows and tracking change in one transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sql_create_statements.append(SQL(TABLE).format())

    def add(self, product: str, quantity: int, tracking: Tracking) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(ADD, (product, quantity), prepare=True)

    def total(self) -> int:
        with self.datastore.transaction() as cursor:
            found = cursor.execute("SELECT coalesce(sum(quantity), 0) AS sum FROM totals").fetchone()
        assert found is not None
        return int(found["sum"])

    def clear(self) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            cursor.execute("TRUNCATE totals")


class TimedProjection(Projection[Totals]):
    """What both projections share: they note when they began and when the last event came."""

    wanted = 0

    def __init__(self, view: Totals) -> None:
        super().__init__(view)
        self.total = 0
        self.laps = Laps(self.wanted)
        self.done = threading.Event()

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        last = self.laps.see()
        self.handle(domain_event, tracking)
        if last:
            self.done.set()

    def handle(self, event: Any, tracking: Tracking) -> None:
        raise NotImplementedError


class TableProjection(TimedProjection):
    """Each event: its row and the tracking in one transaction."""

    name = "intable"

    def handle(self, event: Any, tracking: Tracking) -> None:
        if isinstance(event, Order.ItemAdded):
            self.view.add(event.data["product"], event.data["quantity"], tracking)
        else:
            self.view.insert_tracking(tracking)


class MemoryProjection(TimedProjection):
    """Counted in memory, tracking stored after every hundred events: what `at_least_once` does."""

    name = "inmemory"
    every = 100

    def __init__(self, view: Totals) -> None:
        super().__init__(view)
        self.counted: Counter[str] = Counter()

    def handle(self, event: Any, tracking: Tracking) -> None:
        if isinstance(event, Order.ItemAdded):
            self.counted[event.data["product"]] += event.data["quantity"]
            self.total += event.data["quantity"]
        if self.laps.seen % self.every == 0:
            self.view.insert_tracking(tracking)


class ProjectionPeer:
    """An application on PostgreSQL with events in it, and runners over them."""

    def __init__(self, server: Postgres) -> None:
        self._env = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_HOST": server.host,
            "POSTGRES_DBNAME": server.database,
            "POSTGRES_USER": server.user,
            "POSTGRES_PASSWORD": "",
        }
        self._rounds = itertools.count()
        self.events = 0
        self.total = 0

    def fill(self, payloads: Sequence[Payload], events: int) -> None:
        """Orders of fifty events; the first one of each says only that it was created."""
        app = Orders(env=self._env)
        try:
            source = itertools.cycle(payloads)
            for _ in range(max(1, events // EVENTS_PER_ORDER)):
                order = Order()
                for payload in itertools.islice(source, EVENTS_PER_ORDER - 1):
                    order.add_item(payload)
                    self.total += payload["quantity"]
                app.save(order)
                self.events += EVENTS_PER_ORDER
        finally:
            app.close()

    def run(self, kind: type[TimedProjection]) -> Round:
        """All events from the beginning: a projection of a new name has no tracking."""
        with self._runner(kind) as runner:
            projection = runner.projection
            assert isinstance(projection, TimedProjection)
            if not projection.done.wait(WAIT_S):
                raise RuntimeError(f"eventsourcing handled {projection.laps.seen:,} events in {WAIT_S:.0f} s")
            total = projection.total or projection.view.total()
            projection.view.clear()
        if total != self.total:
            raise RuntimeError(f"eventsourcing: the total is {total}, not {self.total}")
        return projection.laps.round

    def _runner(self, kind: type[TimedProjection]) -> ProjectionRunner[Orders, Totals]:
        named = type(kind.__name__, (kind,), {"name": f"{kind.name}{next(self._rounds)}", "wanted": self.events})
        return ProjectionRunner(application_class=Orders, projection_class=named, view_class=Totals, env=self._env)

    def waits(self, payloads: Sequence[Payload], samples: int) -> list[float]:
        """Save one event after another: from the acknowledgement until `runner.wait` comes back."""
        found = []
        with self._runner(TableProjection) as runner:
            runner.wait(runner.app.recorder.max_notification_id(), timeout=WAIT_S)
            order = Order()
            for number in range(samples):
                order.add_item(payloads[number % len(payloads)])
                recordings = runner.app.save(order)
                saved = time.perf_counter()
                runner.wait(recordings[-1].notification.id, timeout=WAIT_S)
                found.append(time.perf_counter() - saved)
        return found
