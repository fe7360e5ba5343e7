"""A small sample for a new folder: three topics, twenty journals, two hundred events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.errors import Conflict
from everlog.journal.journal import Journal

EVENTS_PER_JOURNAL = 10
REGIONS = ("eu", "us", "asia")
GOODS = ("tea", "coffee", "cocoa", "honey", "bread")


class SampleReport(NamedTuple):
    """What was loaded."""

    topics: int
    journals: int
    events: int


def _order(number: int) -> Iterator[Event]:
    region = REGIONS[number % 3]
    yield Event({"type": "placed", "customer": f"customer-{number % 4 + 1}"}, tags={region, "order"})
    for line in range(1, EVENTS_PER_JOURNAL - 2):
        item = GOODS[(number + line) % 5]
        yield Event({"type": "line", "item": item, "count": (number * line) % 7 + 1}, tags={region})
    yield Event({"type": "paid", "amount": 10 * number + 5}, tags={region, "payment"})
    yield Event({"type": "shipped", "parcel": f"P-{1000 + number}"}, tags={region})


def _cart(number: int) -> Iterator[Event]:
    for step in range(EVENTS_PER_JOURNAL):
        kind = "removed" if step % 4 == 3 else "added"
        yield Event({"type": kind, "item": GOODS[(number + step) % 5]}, tags={"cart"})


def _account(number: int) -> Iterator[Event]:
    yield Event({"type": "opened", "owner": f"customer-{number}"}, tags={"account"})
    for step in range(1, EVENTS_PER_JOURNAL):
        kind = "withdrawn" if step % 3 == 0 else "deposited"
        yield Event({"type": kind, "amount": 10 * step + number})


def balance(events: list[Any]) -> int:
    """What the account holds after these events.

    >>> balance([{"type": "deposited", "amount": 5}, {"type": "withdrawn", "amount": 2}])
    3
    """
    signs = {"deposited": 1, "withdrawn": -1}
    return sum(signs.get(event["type"], 0) * event.get("amount", 0) for event in events)


async def _fill(
    journal: Journal, name: str, count: int, story: Callable[[int], Iterator[Event]], **options: Any
) -> int:
    """Journals name-1 to name-count, each to the end of its story; appends of different journals share commits."""

    async def tell(number: int) -> int:
        events = list(story(number))
        for event in events[await journal.pointer(f"{name}-{number}") or 0 :]:
            await journal.append(f"{name}-{number}", event, **options)
        return len(events)

    return sum(await asyncio.gather(*(tell(number) for number in range(1, count + 1))))


async def holds_sample(log: Everlog) -> bool:
    """Whether the sample, or something that looks like it, is there."""
    state = await log.journal("accounts").snapshots.load("account-1")
    return state is not None and await log.journal("orders").pointer("order-1") is not None


async def load_sample(log: Everlog) -> SampleReport | None:
    """Fill a new log; None, and nothing done, if it holds anything already, or another process is just filling it."""
    if await log.topics():
        return None
    orders, carts, accounts = log.journal("orders"), log.journal("carts"), log.journal("accounts")
    try:  # of processes that start together, one wins the first event, and writes the rest
        await orders.append("order-1", next(_order(1)), expected=0)
    except Conflict:
        return None
    events = sum(
        await asyncio.gather(
            _fill(orders, "order", 10, _order),
            _fill(carts, "cart", 6, _cart, expire_after=timedelta(days=30)),
            _fill(accounts, "account", 4, _account),
        )
    )
    await orders.delete("order-3", to=4)
    await carts.purge("cart-6")
    state = balance([event.payload async for event in accounts.read("account-1", to_seq=8)])
    await accounts.snapshots.save("account-1", seq_nr=8, payload={"balance": state})
    return SampleReport(3, 20, events)
