"""Aggregates: load, decide, append with what was read, again on a conflict, a snapshot now and then."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everlog
from everlog import Conflict, Event, EventMismatch, InvalidEventType, InvalidInput, StateLost, UnknownEventType
from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.core.actions import Delete, encode_action
from everlog.errors import OutcomeUnknown, Overtaken, StorageFailed
from everlog.testing.journal_support import produce
from everlog.testing.replication import replicate
from tests.journal.aggregate_process import Counter, Raised, count
from tests.support import examples, small_config


@everlog.event("placed")
@dataclass
class Placed:
    lines: list[str]
    on: date


@everlog.event("paid")
@dataclass
class Paid:
    cents: int


class AlreadyPaid(Exception):
    pass


class Order(everlog.Aggregate, topic="orders", events=Placed | Paid, snapshot_every=3):
    lines: set[str] = field(default_factory=set)
    on: date | None = None
    paid: int = 0

    def apply(self, event: Placed | Paid) -> None:
        match event:
            case Placed(lines, on):
                self.lines |= set(lines)
                self.on = on
            case Paid(cents):
                self.paid += cents

    def place(self, *lines: str) -> None:
        self.emit(Placed([*lines], date(2030, 1, 31)), tags={"order"})

    def pay(self, cents: int) -> None:
        if self.paid:
            raise AlreadyPaid
        self.emit(Paid(cents))


async def test_the_story_of_an_order(either: Everlog) -> None:
    fresh = await either.load(Order, "o-1")
    assert (fresh, fresh.id, fresh.version, fresh.token, fresh.emitted) == (Order(), "o-1", 0, None, ())
    placed = await either.update(Order, "o-1", lambda order: order.place("tea", "milk"))
    assert (placed.lines, placed.version, placed.emitted) == ({"tea", "milk"}, 1, ())

    async def pay(order: Order) -> None:
        await asyncio.sleep(0)
        order.pay(12)

    paid = await either.update(Order, "o-1", pay)
    assert (paid.paid, paid.version) == (12, 2)
    assert paid.token is not None
    assert paid.token.range == (2, 2)
    assert await either.load(Order, "o-1") == paid == Order(lines={"milk", "tea"}, on=date(2030, 1, 31), paid=12)
    found = [event async for event in either.journal("orders", Placed | Paid).read("o-1", after=paid.token)]
    assert [(event.type, event.tags) for event in found] == [("placed", {"order"}), ("paid", frozenset())]
    with pytest.raises(AlreadyPaid):
        await either.update(Order, "o-1", pay)
    assert (await either.load(Order, "o-1")).version == 2


async def test_no_event_no_append(log: Everlog) -> None:
    order = await log.update(Order, "o-1", lambda order: None)
    assert (order.version, order.token) == (0, None)
    assert await log.topics() == []


async def test_several_events_are_one_append(log: Everlog) -> None:
    def both(order: Order) -> None:
        order.place("tea")
        order.pay(3)
        assert order.emitted == (Placed(["tea"], date(2030, 1, 31)), Paid(3))
        assert order.paid == 3, "what was emitted counts at once"

    order = await log.update(Order, "o-1", both)
    assert order.token is not None
    assert order.token.range == (1, 2)


async def test_a_conflict_is_decided_again_with_the_state_as_it_is_then(either: Everlog) -> None:
    seen = []

    async def late(order: Order) -> None:
        seen.append({*order.lines})
        if len(seen) < 3:
            await either.journal("orders", Placed).append("o-1", Placed([str(len(seen))], date(2030, 1, 1)))
        order.place("mine")

    order = await either.update(Order, "o-1", late, retries=2)
    assert seen == [set(), {"1"}, {"1", "2"}]
    assert (order.lines, order.version) == ({"1", "2", "mine"}, 3)
    seen.clear()
    with pytest.raises(Conflict):
        await either.update(Order, "o-1", late, retries=1)
    assert len(seen) == 2
    assert (await either.load(Order, "o-1")).version == 5, "only what the others wrote"


async def test_an_unknown_outcome_is_found_out(log: Everlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored or not, the answer is lost twice: the events are there once."""
    produce, lost = log.parts.writer.produce, [True, False, True, False]

    async def losing(ref: Any, action: Any, *rest: Any) -> Any:
        append_id = rest[2] if len(rest) > 2 else ""
        if append_id and lost:
            if lost.pop(0):
                await produce(ref, action, *rest)
            log.parts.writer.forget(ref)
            raise OutcomeUnknown(str(ref), append_id, "no answer")
        return await produce(ref, action, *rest)

    monkeypatch.setattr(log.parts.writer, "produce", losing)
    calls = []

    def pay(order: Order) -> None:
        calls.append(order.version)
        order.emit(Paid(1))

    for expected in (1, 2, 3):
        assert (await log.update(Order, "o-1", pay)).paid == expected
    assert not lost
    assert calls == [0, 1, 2], "it was decided once"
    assert [event.payload async for event in log.journal("orders", Paid).read("o-1")] == [Paid(1)] * 3


async def test_an_outcome_that_stays_unknown_is_said(log: Everlog, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    async def silent(ref: Any, action: Any, *rest: Any) -> Any:
        tries.append(rest[2])
        raise OutcomeUnknown(str(ref), rest[2], "no answer")

    monkeypatch.setattr(log.parts.writer, "produce", silent)
    monkeypatch.setattr("everlog.journal.aggregate_update.MIN_PAUSE_S", 0.001)
    with pytest.raises(OutcomeUnknown):
        await log.update(Order, "o-1", lambda order: order.pay(1))
    assert 1 < len(tries) <= 10
    assert len(set(tries)) == 1, "one append, asked for again"


async def test_a_snapshot_every_so_many_events(either: Everlog) -> None:
    applied: list[int] = []

    class Watched(Order, topic="orders", snapshot_every=3):
        def apply(self, event: Placed | Paid) -> None:
            super().apply(event)
            applied.append(1)

    for number in range(1, 8):
        order = await either.update(Watched, "o-1", lambda order: order.emit(Paid(1)))
        assert (order.paid, order.version) == (number, number)
    kept = await either.journal("orders").snapshots.list("o-1")
    assert [(one.seq_nr, one.metadata) for one in kept] == [(3, {"snapshot_version": 1}), (6, {"snapshot_version": 1})]
    applied.clear()
    assert (await either.load(Watched, "o-1")).paid == 7
    assert len(applied) == 1, "only what came after the snapshot"


async def test_a_snapshot_that_fails_fails_nothing(log: Everlog, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def refuse(*args: Any, **options: Any) -> None:
        raise StorageFailed("no room")

    monkeypatch.setattr(log.parts.store, "put_snapshot", refuse)
    for _ in range(4):
        order = await log.update(Order, "o-1", lambda order: order.emit(Paid(1)))
    assert order.paid == (await log.load(Order, "o-1")).paid == 4
    assert "Order 'o-1': no snapshot at seqNr 3: StorageFailed('no room')" in caplog.text
    assert caplog.text.count("no snapshot") == 1, "the next try is three events later"


class Odd:
    """What no snapshot can hold."""


class Unkept(everlog.Aggregate, topic="unkept", snapshot_every=1):
    odd: Odd | None = None
    count: int = 0

    def apply(self, event: Any) -> None:
        self.count += event["by"]
        self.odd = Odd()


async def test_a_state_that_no_snapshot_can_hold_is_read_from_its_events(log: Everlog, caplog: Any) -> None:
    """And without classes events are plain JSON."""
    for _ in range(3):
        await log.update(Unkept, "u", lambda unkept: unkept.emit({"by": 2}))
    assert (await log.load(Unkept, "u")).count == 6
    assert await log.journal("unkept").snapshots.list("u") == []
    assert "no snapshot at seqNr 1" in caplog.text


class Seats(everlog.Aggregate, topic="seats", snapshot_every=2):
    """Its keys are numbers, which the annotation does not say."""

    taken: dict = field(default_factory=dict)  # type: ignore[type-arg]

    def apply(self, event: Any) -> None:
        self.taken[event["seat"]] = event["to"]


class Guests(everlog.Aggregate, topic="guests", snapshot_every=2):
    seen: Any = field(default_factory=set)

    def apply(self, event: Any) -> None:
        self.seen.add(event["seat"])


class Noted(everlog.Aggregate, topic="noted", snapshot_every=2):
    count: int = 0

    def __post_init__(self) -> None:
        self.notes: list[Any] = []

    def apply(self, event: Any) -> None:
        self.count += 1
        self.notes.append(event["seat"])


@pytest.mark.parametrize(
    ("kind", "name", "right"),
    [(Seats, "taken", {1: "x", 2: "x", 3: "x"}), (Guests, "seen", {1, 2, 3}), (Noted, "notes", [1, 2, 3])],
)
async def test_a_snapshot_never_changes_the_state(
    either: Everlog, caplog: Any, kind: Any, name: str, right: Any
) -> None:
    """What would come back as something else is not kept; the warning names the field."""
    for seat in (1, 2, 3):
        await either.update(kind, "s", lambda one, seat=seat: one.emit({"seat": seat, "to": "x"}))  # type: ignore[misc]
    assert getattr(await either.load(kind, "s"), name) == right
    assert "no snapshot at seqNr 2" in caplog.text
    assert repr(name) in caplog.text
    assert await either.journal(kind._definition.topic).snapshots.list("s") == []


async def test_another_snapshot_version_is_ignored(log: Everlog) -> None:
    for _ in range(4):
        await log.update(Order, "o-1", lambda order: order.emit(Paid(2)))

    class Order2(everlog.Aggregate, topic="orders", events=Placed | Paid, snapshot_every=3, snapshot_version=2):
        payments: list[int] = field(default_factory=list)

        def apply(self, event: Placed | Paid) -> None:
            if isinstance(event, Paid):
                self.payments.append(event.cents)

    order = await log.load(Order2, "o-1")
    assert (order.payments, order.version) == ([2] * 4, 4)
    for _ in range(2):
        order = await log.update(Order2, "o-1", lambda order: order.emit(Paid(5)))
    assert order.payments == [2, 2, 2, 2, 5, 5]
    assert [one.metadata for one in await log.journal("orders").snapshots.list("o-1")] == [
        {"snapshot_version": 1},
        {"snapshot_version": 2},
    ]
    await log.journal("orders").delete("o-1", to=2)
    assert (await log.load(Order2, "o-1")).payments == [2, 2, 2, 2, 5, 5]
    assert (await log.load(Order, "o-1")).paid == 18, "from its own snapshot, at 3"
    await log.journal("orders").delete("o-1", to=4)
    with pytest.raises(StateLost, match="no snapshot of version 1 holds what they came to") as caught:
        await log.update(Order, "o-1", lambda order: order.pay(1))
    assert (caught.value.delete_to, caught.value.kept, caught.value.version) == (4, 3, 1)
    assert (await log.load(Order2, "o-1")).payments == [2, 2, 2, 2, 5, 5]


async def test_what_was_deleted_beyond_the_newest_snapshot_is_lost(either: Everlog) -> None:
    """Without any snapshot too, as long as events are left that do not tell the whole story."""
    await either.update(Order, "o-1", lambda order: [order.emit(Paid(1)) for _ in range(3)])
    await either.update(Order, "o-1", lambda order: order.emit(Paid(1)))
    journal = either.journal("orders")
    await journal.delete("o-1", to=3)
    assert (await either.load(Order, "o-1")).paid == 4
    await journal.delete("o-1", to=4)
    with pytest.raises(StateLost, match="the newest is at 3"):
        await either.load(Order, "o-1")
    await journal.snapshots.delete("o-1")
    order = await either.load(Order, "o-1")
    assert (order, order.version) == (Order(), 4), "all are deleted: nothing is left of it"
    await journal.append("o-1", Event(Paid(7)))
    with pytest.raises(StateLost, match="there is none"):
        await either.update(Order, "o-1", lambda order: order.emit(Paid(1)))
    options: Any = {"payload": {"lines": [], "on": None, "paid": 4}, "metadata": {"snapshot_version": 1}}
    await journal.snapshots.save("o-1", seq_nr=4, **options)
    assert (await either.load(Order, "o-1")).paid == 11, "as the error advises"


class Account(everlog.Aggregate, topic="accounts", snapshot_every=None):
    balance: int = 0

    def apply(self, event: Any) -> None:
        self.balance += event["by"]

    def spend(self, amount: int) -> None:
        if self.balance < amount:
            raise ValueError("overdrawn")
        self.emit({"by": -amount})


async def test_no_decision_is_made_from_the_events_that_a_delete_left(either: Everlog) -> None:
    await either.update(Account, "a", lambda account: [account.emit({"by": by}) for by in (-100, 100)])
    await either.journal("accounts").delete("a", to=1)
    with pytest.raises(StateLost, match="events up to seqNr 1 are deleted"):
        await either.update(Account, "a", lambda account: account.spend(100))
    assert await either.journal("accounts").pointer("a") == 2


async def test_a_journal_that_begins_later_needs_a_snapshot_of_its_beginning(log: Everlog) -> None:
    """Its head cannot be told from that of a journal whose first events are deleted."""
    journal = log.journal("accounts")
    await journal.append("a", Event({"by": 5}, seq_nr=5))
    with pytest.raises(StateLost, match="up to seqNr 4"):
        await log.load(Account, "a")
    await journal.snapshots.save("a", seq_nr=4, payload={"balance": 0}, metadata={"snapshot_version": 1})
    assert (await log.load(Account, "a")).balance == 5


async def test_a_journal_that_only_a_delete_began_has_no_life_yet(log: Everlog) -> None:
    """As kafka-journal writes it. The first update begins the life, and keeps where it began."""
    await produce(log, "a", encode_action(Delete(3)), topic="accounts")
    for balance in (3, 6):
        account = await log.update(Account, "a", lambda account: account.emit({"by": 3}))
        assert (account.balance, (await log.load(Account, "a")).balance) == (balance, balance)
    assert account.version == 5


async def test_a_first_state_that_cannot_be_kept_is_named(log: Everlog) -> None:
    class Hall(everlog.Aggregate, topic="halls"):
        seats: Any = field(default_factory=set)

        def apply(self, event: Any) -> None: ...

    await log.update(Hall, "h", lambda hall: hall.emit({"seat": 1}))
    await log.journal("halls").delete("h")
    with pytest.raises(InvalidInput, match="Hall 'h': all its events are deleted"):
        await log.update(Hall, "h", lambda hall: hall.emit({"seat": 2}))


async def test_after_all_events_are_deleted_the_state_begins_anew(either: Everlog) -> None:
    """The first update keeps where it began, or the next load could not tell what is missing."""
    await either.update(Account, "a", lambda account: account.emit({"by": 5}))
    await either.journal("accounts").delete("a")
    assert (await either.update(Account, "a", lambda account: None)).version == 1
    assert await either.journal("accounts").snapshots.list("a") == []
    for balance in (3, 6):
        account = await either.update(Account, "a", lambda account: account.emit({"by": 3}))
        assert (account.balance, await either.load(Account, "a")) == (balance, account)
    assert [one.seq_nr for one in await either.journal("accounts").snapshots.list("a")] == [1]


async def test_what_a_function_changes_by_itself_is_not_kept(log: Everlog) -> None:
    """Only events change the state: a snapshot holds what they add up to."""

    def careless(order: Order) -> None:
        order.paid += 1000
        order.place("tea", "milk", "cake")
        order.emit(Paid(1))
        order.emit(Paid(1))

    await log.update(Order, "o-1", careless)
    assert [one.seq_nr for one in await log.journal("orders").snapshots.list("o-1")] == [3]
    assert (await log.load(Order, "o-1")).paid == 2


async def test_a_snapshot_that_does_not_fit_is_not_used(log: Everlog, caplog: Any) -> None:
    """The fields changed, and the version was forgotten."""
    await log.update(Order, "o-1", lambda order: order.emit(Paid(2)))
    await log.journal("orders").snapshots.save(
        "o-1", seq_nr=1, payload={"lines": [], "on": None, "paid": "much"}, metadata={"snapshot_version": 1}
    )
    assert (await log.load(Order, "o-1")).paid == 2
    assert "raise snapshot_version" in caplog.text


@pytest.mark.parametrize(
    ("payload", "says"),
    [({"count": 99}, "it lacks 'names'"), ({"count": 99, "names": [], "old": 3}, "'old' is no field of the class")],
)
async def test_a_snapshot_with_other_fields_is_not_used(either: Everlog, caplog: Any, payload: Any, says: str) -> None:
    """A field was added or removed, and the version was forgotten: a default is not what its events came to."""

    class Named(everlog.Aggregate, topic="named"):
        count: int = 0
        names: list[str] = field(default_factory=list)

        def apply(self, event: Any) -> None:
            self.count += 1
            self.names.append(event["name"])

    named = either.journal("named")
    await named.append("n", [Event({"name": "ada"}), Event({"name": "bob"})])
    await named.snapshots.save("n", seq_nr=1, payload=payload, metadata={"snapshot_version": 1})
    found = await either.load(Named, "n")
    assert (found.count, found.names) == (2, ["ada", "bob"])
    assert says in caplog.text


async def test_a_subclass_inherits_what_it_does_not_say_itself(log: Everlog) -> None:
    class Base(everlog.Aggregate, topic="bases", snapshot_every=2, snapshot_version=7):
        count: int = 0

        def apply(self, event: Any) -> None:
            self.count += 1

    class Heir(Base):
        pass

    class Never(Base, snapshot_every=None):
        pass

    class AfterNever(Never, snapshot_version=8):
        pass

    for kind in (Heir, Never, AfterNever):
        await log.update(kind, kind.__name__, lambda one: [one.emit({}) for _ in range(100)])
    snapshots = log.journal("bases").snapshots
    assert [(one.seq_nr, one.metadata) for one in await snapshots.list("Heir")] == [(100, {"snapshot_version": 7})]
    assert await snapshots.list("Never") == await snapshots.list("AfterNever") == []


async def test_events_deleted_after_a_snapshot_change_nothing(either: Everlog) -> None:
    for number in range(1, 12):
        order = await either.update(Order, "o-1", lambda order: order.emit(Paid(1)))
        assert order.paid == number
        if number % 3 == 0:
            await either.journal("orders").delete("o-1", to=number)


async def test_others_snapshot_and_delete_while_it_is_decided(tmp_path: Path) -> None:
    async with connect(small_config(tmp_path)) as one, connect(small_config(tmp_path)) as two:

        async def meanwhile(order: Order) -> None:
            if not order.version:
                for _ in range(5):
                    await two.update(Order, "o-1", lambda other: other.emit(Paid(1)))
                await two.journal("orders").delete("o-1", to=3)
                await replicate(two)
            order.emit(Paid(10))

        order = await one.update(Order, "o-1", meanwhile)
        assert (order.paid, order.version) == (15, 6)
        assert await two.load(Order, "o-1") == order


async def test_a_load_that_is_overtaken_begins_again(log: Everlog, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.update(Order, "o-1", lambda order: order.emit(Paid(1)))
    left = [3]
    pinned = type(log.journal("orders")).pinned

    async def overtaken(self: Any, journal_id: str) -> Any:
        if left[0]:
            left[0] -= 1
            raise Overtaken("it was deleted from")
        return await pinned(self, journal_id)

    monkeypatch.setattr(type(log.journal("orders")), "pinned", overtaken)
    assert (await log.load(Order, "o-1")).paid == 1
    left[0] = 1000
    with pytest.raises(Overtaken):
        await log.load(Order, "o-1")


async def test_a_purge_and_a_new_life_between_load_and_append(either: Everlog) -> None:
    """Both lives are at the same seqNr: the decision is made again in the new one, and nothing is mixed."""
    journal, seen = either.journal("orders", Placed | Paid), []
    await journal.append("o-1", [Paid(1), Paid(1)])

    async def meanwhile(order: Order) -> None:
        seen.append(order.paid)
        if len(seen) == 1:
            await journal.purge("o-1")
            await journal.append("o-1", [Paid(7), Paid(7)])
        order.emit(Paid(100))

    order = await either.update(Order, "o-1", meanwhile)
    assert seen == [2, 14]
    assert (order.paid, order.version, await either.load(Order, "o-1")) == (114, 3, order)


async def test_a_snapshot_of_an_old_life_is_not_kept_in_a_new_one(
    log: Everlog, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The journal is purged and begun anew right before the snapshot is stored."""
    journal = log.journal("orders", Placed | Paid)
    save = type(journal.snapshots).save

    async def late(self: Any, journal_id: str, **options: Any) -> None:
        await journal.purge(journal_id)
        await journal.append(journal_id, [Paid(7)] * 4)
        await save(self, journal_id, **options)

    monkeypatch.setattr(type(journal.snapshots), "save", late)
    order = await log.update(Order, "o-1", lambda order: [order.emit(Paid(1)) for _ in range(3)])
    assert order.paid == 3
    assert "no snapshot at seqNr 3" in caplog.text
    assert (await log.load(Order, "o-1")).paid == 28


async def test_the_version_goes_on_as_an_expectation(either: Everlog) -> None:
    journal = either.journal("orders", Placed | Paid)
    order = await either.update(Order, "o-1", lambda order: order.pay(1))
    await journal.append("o-1", Paid(5), expected=order.version)
    with pytest.raises(Conflict):
        await journal.append("o-1", Paid(5), expected=order.version)
    loaded = await either.load(Order, "o-1")
    await journal.purge("o-1")
    await journal.append("o-1", [Paid(5), Paid(5)])
    with pytest.raises(Conflict):
        await journal.append("o-1", Paid(5), expected=loaded.version)


async def test_unknown_events_are_not_passed_over(log: Everlog) -> None:
    await log.update(Order, "o-1", lambda order: order.emit(Paid(1)))
    await log.journal("orders").append("o-1", Event({"why": "broken"}, type="refunded", type_version=4))
    with pytest.raises(UnknownEventType, match="'refunded', version 4") as caught:
        await log.update(Order, "o-1", lambda order: order.pay(1))
    assert (caught.value.type, caught.value.version, caught.value.seq_nr) == ("refunded", 4, 2)

    class Lenient(Order, topic="orders"):
        def apply_unknown(self, event: everlog.EventRecord) -> None:
            self.paid = 0

    assert (await log.load(Lenient, "o-1")).paid == 0


async def test_updates_within_updates_end(log: Everlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is waited for, but not for ever."""
    monkeypatch.setattr("everlog.journal.aggregate_update.MAX_TURN_S", 0.01)

    async def twice(order: Order) -> None:
        if order.version < 2:
            await log.update(Order, "o-1", lambda inner: inner.emit(Paid(1)))
        order.emit(Paid(10))

    assert (await log.update(Order, "o-1", twice)).paid == 12


def test_without_await_a_function_runs_in_the_callers_thread(tmp_path) -> None:
    with everlog.sync.connect(small_config(tmp_path)) as log:

        def pay(order: Order) -> None:
            assert log.journal("orders").pointer("o-1") is None, "the log may be used"
            order.pay(3)

        assert log.update(Order, "o-1", pay).paid == 3

        async def later(order: Order) -> None:
            order.place("tea")

        assert log.update(Order, "o-1", later).version == 2
        assert log.load(Order, "o-1").lines == {"tea"}
        with pytest.raises(AlreadyPaid):
            log.update(Order, "o-1", lambda order: order.pay(1))
        assert log.update(Order, "o-1", lambda order: order.place("milk")).version == 3


def test_decisions_need_no_log() -> None:
    """For the tests of those who write aggregates: given some events, when this is called, then these are emitted."""
    order = Order()
    order.apply(Placed(["tea"], date(2030, 1, 31)))
    order.pay(3)
    assert order.emitted == (Paid(3),)
    with pytest.raises(AlreadyPaid):
        order.pay(3)
    with pytest.raises(InvalidEventType):
        order.emit({"cents": 3})


async def test_pydantic_in_a_state(log: Everlog) -> None:
    class Address(pydantic.BaseModel):
        town: str

    namespace: dict[str, Any] = {"Address": Address, "everlog": everlog, "Any": Any}
    code = (
        "class Customer(everlog.Aggregate, topic='customers', snapshot_every=1):\n"
        "    address: Address | None = None\n"
        "    def apply(self, event: Any) -> None:\n"
        "        self.address = Address(**event)\n"
    )
    exec(compile(code, "customers.py", "exec", dont_inherit=True), namespace)  # real classes as annotations
    kind = namespace["Customer"]
    await log.update(kind, "c", lambda customer: customer.emit({"town": "Oxford"}))
    await log.journal("customers").delete("c")
    assert (await log.load(kind, "c")).address == Address(town="Oxford")


@pytest.mark.parametrize(
    ("body", "options", "says"),
    [
        ({}, {}, "has no topic"),
        ({}, {"topic": "a b"}, "a topic's name"),
        ({}, {"topic": "t"}, "has no apply"),
        ({"apply": print, "__annotations__": {"a": int}}, {"topic": "t"}, "'a' needs a default"),
        (
            {"apply": print, "__annotations__": {"version": int}, "version": 1},
            {"topic": "t"},
            "is a name of aggregates",
        ),
        ({"apply": print, "paid": 0}, {"topic": "t"}, "'paid' has no annotation"),
        ({"apply": print, "version": print}, {"topic": "t"}, "'version' is a name of aggregates"),
        ({"apply": print, "id": "x"}, {"topic": "t"}, "'id' is a name of aggregates"),
        ({"apply": print, "__annotations__": {"_place": int}, "_place": 1}, {"topic": "t"}, "'_place' is a name of"),
        ({"apply": print, "_place": 1}, {"topic": "t"}, "'_place' is a name of"),
        ({"apply": print}, {"topic": "t", "events": dict}, "dict is not declared"),
        ({"apply": print}, {"topic": "t", "snapshot_every": -1}, "snapshot_every"),
        ({"apply": print}, {"topic": "t", "snapshot_every": True}, "snapshot_every"),
        ({"apply": print}, {"topic": "t", "snapshot_every": False}, "snapshot_every"),
        ({"apply": print}, {"topic": "t", "snapshot_every": 0}, "snapshot_every"),
        ({"apply": print}, {"topic": "t", "snapshot_version": 0}, "snapshot_version"),
    ],
)
def test_wrong_declarations(body: Any, options: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        type("Wrong", (everlog.Aggregate,), body, **options)


def test_declarations_that_are_fine() -> None:
    class Limited(everlog.Aggregate, topic="limits"):
        LIMIT: ClassVar[int] = 5
        used: int = 0

        def apply(self, event: Any) -> None: ...

    class Shown(Protocol):
        used: int

    class Wide(Limited, Shown):
        LIMIT = 6

    assert (Wide.LIMIT, Wide().used) == (6, 0)


@pytest.mark.parametrize("kind", [dict, everlog.Aggregate, 3, Order()])
async def test_wrong_kinds(log: Everlog, kind: Any) -> None:
    with pytest.raises(InvalidInput, match="a subclass of everlog"):
        await log.load(kind, "o-1")
    with pytest.raises(InvalidInput, match="a subclass of everlog"):
        await log.update(kind, "o-1", print)


@pytest.mark.parametrize("function", [None, 7, Paid(1)])
async def test_wrong_functions(log: Everlog, function: Any) -> None:
    with pytest.raises(InvalidInput, match="a function that takes the aggregate"):
        await log.update(Order, "o-1", function)


def generate(order: Order) -> Any:
    order.place("tea")
    yield


async def generate_later(order: Order) -> Any:
    order.place("tea")
    yield


LAZY = [
    generate,
    generate_later,
    lambda order: map(order.place, ["tea"]),
    lambda order: (order.place(_) for _ in "tea"),
]


@pytest.mark.parametrize("function", LAZY)
async def test_a_function_that_would_not_run_is_refused(log: Everlog, function: Any) -> None:
    """Nothing would be stored, and the update would seem to have succeeded."""
    with pytest.raises(InvalidInput, match="returned an iterator, whose steps never run"):
        await log.update(Order, "o-1", function)
    assert await log.journal("orders").pointer("o-1") is None


@pytest.mark.parametrize("function", LAZY)
def test_without_await_it_is_refused_too(tmp_path: Path, function: Any) -> None:
    with everlog.sync.connect(small_config(tmp_path)) as log:
        with pytest.raises(InvalidInput, match="returned an iterator"):
            log.update(Order, "o-1", function)
        assert log.journal("orders").pointer("o-1") is None


class Awaitable:
    """Something to await that is no coroutine."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        self.order.place("tea")


async def test_whatever_can_be_awaited_is_awaited(either: Everlog) -> None:
    assert (await either.update(Order, "o-1", Awaitable)).lines == {"tea"}


def test_without_await_whatever_can_be_awaited_is_awaited_too(tmp_path: Path) -> None:
    with everlog.sync.connect(small_config(tmp_path)) as log:
        assert log.update(Order, "o-1", Awaitable).lines == {"tea"}
        assert log.load(Order, "o-1").lines == {"tea"}


async def test_an_event_in_an_event_is_refused(log: Everlog) -> None:
    for wrapped in (Event(Paid(3), tags={"eu"}), Event({"cents": 3})):
        with pytest.raises(InvalidInput, match=r"emit\(…, tags=…\)"):
            Order().emit(wrapped)
        with pytest.raises(InvalidInput, match=r"emit\(…, tags=…\)"):
            await log.update(Account, "a", lambda account, wrapped=wrapped: account.emit(wrapped))  # type: ignore[misc]


async def test_a_stored_event_that_does_not_fit_is_named_with_its_aggregate(either: Everlog) -> None:
    await either.journal("orders").append("o-1", [Event({"cents": 1}, type="paid"), Event("text", type="paid")])
    with pytest.raises(EventMismatch, match=r"^Order 'o-1': the event at seqNr 2 of the type 'paid'"):
        await either.load(Order, "o-1")


@pytest.mark.parametrize("retries", [-1, True, "3", None, 1.5])
async def test_wrong_retries(log: Everlog, retries: Any) -> None:
    with pytest.raises(InvalidInput, match="retries"):
        await log.update(Order, "o-1", print, retries=retries)


async def replicate_always(log: Everlog) -> None:
    while True:
        await replicate(log)
        await asyncio.sleep(0.1)


async def test_eight_tasks_of_two_processes_and_over_http_count_exactly(tmp_path: Path) -> None:
    """25 increments each: every one counts once, snapshots included."""
    command = [sys.executable, "-m", "tests.journal.aggregate_process", str(tmp_path), "3", "25"]
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert other.stdout is not None
    assert other.stdin is not None
    try:
        assert await other.stdout.readline() == b"ready\n"
        async with (
            connect(small_config(tmp_path)) as log,
            serving(log, host="127.0.0.1", port=0) as address,
            connect(address) as remote,
        ):
            other.stdin.write(b"go\n")
            replicating = asyncio.create_task(replicate_always(log))
            await asyncio.gather(count(log, 3, 25), count(remote, 2, 25))
            assert await other.wait() == 0
            replicating.cancel()
            for one in (log, remote):
                found = await one.load(Counter, "c")
                assert (found.value, found.version) == (200, 200)
            total = [event.payload async for event in log.journal("counters", Raised).read("c")]
            assert total == [Raised(1)] * 200
            assert await log.journal("counters").snapshots.list("c")
    finally:
        if other.returncode is None:
            other.kill()
            await other.wait()


STEPS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(-9, 9), max_size=4)), max_size=12)


@settings(max_examples=examples(12))
@given(steps=STEPS, every=st.sampled_from([None, 1, 2, 3, 5, 100]))
def test_the_state_is_the_fold_of_all_events(tmp_path_factory: pytest.TempPathFactory, steps: Any, every: Any) -> None:
    """Whatever the interval of snapshots, whatever was deleted behind them, and whatever is replicated."""

    class Sum(everlog.Aggregate, topic="sums", events=Raised, snapshot_every=every):
        values: list[int] = field(default_factory=list)

        def apply(self, event: Raised) -> None:
            self.values.append(event.by)

    async def run() -> None:
        model: list[int] = []
        async with connect(small_config(tmp_path_factory.mktemp("sums"))) as log:
            journal = log.journal("sums")
            for kind, values in steps:
                for value in values:
                    await log.update(Sum, "s", lambda found, value=value: found.emit(Raised(value)))  # type: ignore[misc]
                    model.append(value)
                if kind == 1:
                    await replicate(log)
                kept = await journal.snapshots.load("s")
                if kind == 2 and kept is not None:
                    await journal.delete("s", to=kept.seq_nr)
                found = await log.load(Sum, "s")
                assert (found.values, found.version) == (model, len(model))

    asyncio.run(run())
