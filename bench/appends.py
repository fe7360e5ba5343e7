"""Appends, one event each, durable, with optimistic concurrency: one after another, and many at once."""

from __future__ import annotations

from functools import partial

from bench.embedded import Embedded, Writers
from bench.payloads import Payload, make_payloads
from bench.peer import OrderWriters, Peer, RecorderWriters
from bench.report import BEST, Line, compare, line_of
from bench.rounds import Contender, alternate
from bench.settings import Settings

UNIT = "appends/s"


def single(settings: Settings) -> list[Line]:
    """One append after another: what a command handler does."""
    payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
    names = [f"order-{number}" for number in range(settings.single_journals)]
    appends = settings.single_appends
    with Embedded(settings.folder / "single") as side, Peer(settings.folder / "single-peer.db") as peer:
        own = Writers(side, names, payloads)
        orders = OrderWriters(peer, len(names), payloads)
        rows = RecorderWriters(peer, len(names), payloads)
        contenders = [
            Contender("Everlog", partial(own.one_after_another, appends)),
            Contender("eventsourcing: app.save", partial(orders.one_after_another, appends)),
            Contender("eventsourcing: recorder alone", partial(rows.one_after_another, appends)),
        ]
        alternate(contenders, settings.rounds)
    everlog, saved, recorded = (line_of("single appends", one, UNIT) for one in contenders)
    return compare(everlog, [saved, recorded], against=saved, at_least=2)


def concurrent(settings: Settings) -> list[Line]:
    """Many writers at once; the other side runs with several numbers of threads, and its best counts."""
    payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
    with Embedded(settings.folder / "concurrent") as side, Peer(settings.folder / "concurrent-peer.db") as peer:
        contenders = _concurrent_contenders(settings, side, peer, payloads)
        alternate(contenders, settings.rounds)
    own, *others = (line_of("concurrent appends", one, UNIT, writers=settings.writers) for one in contenders)
    best = max(others, key=lambda line: line.rate or 0)
    best.who += BEST
    return compare(own, others, against=best, at_least=8)


def _concurrent_contenders(settings: Settings, side: Embedded, peer: Peer, payloads: list[Payload]) -> list[Contender]:
    names = [f"order-{number}" for number in range(settings.writers)]
    own = Writers(side, names, payloads)
    orders = OrderWriters(peer, settings.writers, payloads)
    contenders = [Contender(f"Everlog, {settings.writers} tasks", partial(own.at_once, settings.appends_per_writer))]
    for threads in settings.peer_threads:
        run = partial(orders.in_threads, settings.peer_concurrent_appends, threads)
        contenders.append(Contender(f"eventsourcing, {threads} thread{'s' if threads > 1 else ''}", run))
    return contenders
