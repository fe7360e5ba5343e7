"""Typed events: written as instances of classes, read as such, whatever their age and wherever they come from."""

from __future__ import annotations

import copy
import json
import pickle
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Union

import httpx
import msgspec
import pydantic
import pydantic.dataclasses
import pytest

import everlog
from everlog import Event, EventMismatch, InvalidEventType, InvalidInput, Json
from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.core.codec import decode_value
from everlog.core.entry import decode
from everlog.core.event_types import EventTypes
from everlog.journal.copy import Copier, Original
from everlog.testing.replication import replicate
from tests.support import small_config


@everlog.event("order-placed", version=3)
@dataclass
class OrderPlaced:
    """Version 1 had euros, version 2 cents without a currency."""

    cents: int
    currency: str
    lines: list[str] = field(default_factory=list)


@everlog.upcast(OrderPlaced, 1)
def to_cents(old: dict[str, Any]) -> dict[str, Any]:
    return {"cents": old["euros"] * 100}


@everlog.upcast(OrderPlaced, 2)
def with_currency(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "currency": "EUR"}


@everlog.event("order-paid")
class OrderPaid(msgspec.Struct):
    at: datetime
    amount: Decimal


@everlog.event("order-sent", version=1)
@dataclass
class OrderSentV1:
    to: str


@everlog.event("order-shipped", version=2)
@dataclass
class OrderShipped:
    street: str
    town: str


@everlog.upcast(OrderShipped, OrderSentV1)
def shipped(old: OrderSentV1) -> OrderShipped:
    street, _, town = old.to.partition(", ")
    return OrderShipped(street, town)


PLACED = OrderPlaced(1250, "USD", ["tea"])
PAID = OrderPaid(datetime(2030, 1, 31, 12, 0, tzinfo=UTC), Decimal("12.50"))
SHIPPED = OrderShipped("Mill Lane 1", "Cambridge")
TYPES = OrderPlaced | OrderPaid | OrderShipped


async def payloads(journal: Any, journal_id: str = "o-1") -> list[Any]:
    return [found.payload async for found in journal.read(journal_id)]


async def test_instances_go_in_and_come_out(either: Everlog) -> None:
    orders = either.journal("orders", TYPES)
    await orders.append("o-1", [PLACED, Event(PAID, tags={"eu"})], expected=0)
    token = await orders.append("o-1", SHIPPED)
    assert token.range == (3, 3)
    assert await payloads(orders) == [PLACED, PAID, SHIPPED]
    found = [one async for one in orders.read("o-1", reverse=True)]
    assert [(one.seq_nr, one.type, one.type_version) for one in found] == [
        (3, "order-shipped", 2),
        (2, "order-paid", 1),
        (1, "order-placed", 3),
    ]
    assert found[1].tags == {"eu"}
    recovered = await orders.recover("o-1")
    assert [one.payload async for one in recovered.events] == [PLACED, PAID, SHIPPED]


async def test_without_classes_the_type_is_seen_and_the_payload_is_json(log: Everlog) -> None:
    await log.journal("orders", OrderPaid).append("o-1", PAID)
    (found,) = [one async for one in log.journal("orders").read("o-1")]
    assert (found.type, found.type_version) == ("order-paid", 1)
    assert found.payload == {"at": "2030-01-31T12:00:00Z", "amount": "12.50"}
    assert found.metadata["payload"] == {"type": "order-paid", "typeVersion": 1}


async def test_a_plain_journal_keeps_types_too(log: Everlog) -> None:
    """An instance brings its type along; without classes a type can be named."""
    plain = log.journal("orders")
    await plain.append("o-1", [Event(PLACED), Event({"euros": 3}, type="order-placed"), Event("text"), Event()])
    found = [one async for one in plain.read("o-1")]
    assert [(one.type, one.type_version) for one in found] == [
        ("order-placed", 3),
        ("order-placed", 1),
        (None, None),
        (None, None),
    ]
    assert await payloads(log.journal("orders", TYPES)) == [PLACED, OrderPlaced(300, "EUR"), "text", None]


async def test_old_versions_become_new_ones_step_by_step(either: Everlog) -> None:
    plain = either.journal("orders")
    await plain.append(
        "o-1",
        [
            Event({"euros": 3}, type="order-placed", type_version=1),
            Event({"cents": 4}, type="order-placed", type_version=2),
            Event(OrderSentV1("High Street 2, Oxford")),
        ],
    )
    orders = either.journal("orders", TYPES)
    assert await payloads(orders) == [
        OrderPlaced(300, "EUR"),
        OrderPlaced(4, "EUR"),
        OrderShipped("High Street 2", "Oxford"),
    ]
    assert [one.type_version async for one in orders.read("o-1")] == [1, 2, 1], "as it is stored"


async def test_what_is_unknown_stays_as_it_is(log: Everlog) -> None:
    await log.journal("orders").append(
        "o-1",
        [
            Event({"a": 1}),
            Event({"b": 2}, type="order-lost"),
            Event({"cents": 1}, type="order-placed", type_version=9),
            Event(b"\x00", type="order-lost"),
            Event("text"),
        ],
    )
    assert await payloads(log.journal("orders", TYPES)) == [{"a": 1}, {"b": 2}, {"cents": 1}, b"\x00", "text"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Event(b"\x00", type="order-placed", type_version=3), r"its payload is binary, not JSON\): read it without"),
        (Event("text", type="order-placed"), r"its payload is text, not JSON\): read it without"),
        (Event(type="order-paid"), "it has no payload"),
        (Event({}, type="order-paid"), r"raise the version of the class, and add a step .* with @everlog.upcast"),
        (Event({"pounds": 1}, type="order-placed"), "KeyError.*: mend the steps of @everlog.upcast from this version"),
        (Event({"cents": "x"}, type="order-placed", type_version=2), "mend the steps of @everlog.upcast"),
    ],
)
async def test_the_error_says_what_to_do(either: Everlog, given: Event, says: str) -> None:
    await either.journal("orders").append("o-1", given)
    (found,) = [one async for one in either.journal("orders", TYPES).read("o-1")]
    with pytest.raises(EventMismatch, match=says):
        _ = found.payload


def test_an_heir_of_an_event_is_no_event() -> None:
    """Its type would be lost silently."""
    with pytest.raises(InvalidEventType, match="Heir is not declared as an event, though it inherits from one"):
        Event(Heir(PAID.at, PAID.amount))
    assert Event(Heir(PAID.at, PAID.amount), type="order-gifted").event_type == ("order-gifted", 1)


async def test_a_stored_event_that_does_not_fit_is_an_error_where_it_is_looked_at(log: Everlog) -> None:
    await log.journal("orders").append(
        "o-1", [Event({"cents": "x"}, type="order-placed", type_version=3), Event(PLACED)]
    )
    bad, good = [one async for one in log.journal("orders", TYPES).read("o-1")]
    assert good.payload == PLACED
    with pytest.raises(EventMismatch, match="seqNr 1 of the type 'order-placed', version 3") as caught:
        _ = bad.payload
    assert (caught.value.type, caught.value.version, caught.value.seq_nr) == ("order-placed", 3, 1)
    await log.journal("orders").append("o-1", Event({}, type="order-placed", type_version=1))
    *_, last = [one async for one in log.journal("orders", TYPES).read("o-1")]
    with pytest.raises(EventMismatch, match="version 1"):  # the step itself fails
        _ = last.payload


async def test_nothing_is_stored_that_could_not_be_read_back(either: Everlog) -> None:
    orders = either.journal("orders", TYPES)
    wrong: Any = "12"
    with pytest.raises(InvalidEventType, match="could not be read back"):
        await orders.append("o-1", [PLACED, OrderPlaced(wrong, "EUR")])
    for given in ({"cents": 1}, Event({"cents": 1}), OrderSentV1("x"), Event(), None, "text"):
        with pytest.raises(InvalidEventType, match="not among the events declared here"):
            await orders.append("o-1", [given])
        with pytest.raises(InvalidEventType, match="not among the events declared here"):
            await orders.append("o-1", given)
    assert await orders.pointer("o-1") is None


async def test_types_are_there_before_and_after_replication(tmp_path, clock) -> None:
    async with connect(small_config(tmp_path), clock=clock) as log:
        orders = log.journal("orders", TYPES)
        await orders.append(
            "o-1", [PLACED, Event(PAID, tags={"eu"})], metadata={"user": 7}, header_metadata={"trace": 1}
        )
        await replicate(log)
        await orders.append("o-1", [SHIPPED])
        assert await payloads(orders) == [PLACED, PAID, SHIPPED]
        first = await anext(aiter(orders.read("o-1")))
        assert first.metadata == {
            "header": {"data": {"trace": 1}},
            "payload": {"data": {"user": 7}, "type": "order-placed", "typeVersion": 3},
        }
        for tag in (log.tag("eu", TYPES), log.tag("eu", [OrderPaid])):
            assert [(one.payload, one.event.type) async for one in tag.current()] == [(PAID, "order-paid")]
        assert [one.payload async for one in log.tag("eu").current()] == [
            {"at": "2030-01-31T12:00:00Z", "amount": "12.50"}
        ]


async def test_tags_over_http_have_classes_too(tmp_path, clock) -> None:
    async with connect(small_config(tmp_path), clock=clock) as local:
        await local.journal("orders", TYPES).append("o-1", [Event(PAID, tags={"eu"})])
        await replicate(local)
        async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
            assert [one.payload async for one in remote.tag("eu", OrderPaid).current()] == [PAID]
            assert await anext(aiter(remote.tag("eu", OrderPaid).live())) is not None


async def test_the_wire_says_the_types(tmp_path, clock) -> None:
    """In the metadata of the value, an entry for each event: readers of kafka-journal pass over it."""
    async with connect(small_config(tmp_path, partitions=1), clock=clock) as log:
        orders = log.journal("orders", TYPES)
        await orders.append("o-1", [PLACED, PAID])
        await log.journal("orders").append("o-2", [Event(b"\x01"), Event(PAID), Event("t")])
        await log.journal("orders").append("o-3", [Event("t")])
        topic = await log.parts.log.topic("journal-orders")
        assert topic is not None
        page = await anext(aiter(log.parts.log.reader().read(topic, {0: 0})))
        typed, binary, plain = page
        assert json.loads(typed.value or b"")["metadata"] == {"types": [["order-placed", 3], ["order-paid", 1]]}
        assert (binary.value or b"").endswith(b'{"types":[null,["order-paid",1],null]}')
        assert json.loads(plain.value or b"")["metadata"] == {}
        found = decode(binary).value
        assert found is not None
        assert [one.event_type for one in found.events] == [None, ("order-paid", 1), None]


@pytest.mark.parametrize("types", ['"x"', "[]", "[1]", '[["a"]]', '[["a",1],["b",1]]', '[["a","1"]]', "null", "{}"])
def test_what_others_call_types_halts_nothing(types: str) -> None:
    value = f'{{"events":[{{"seqNr":1,"payload":{{}}}}],"metadata":{{"types":{types}}}}}'
    assert decode_value("json", value.encode()).events[0].event_type is None


async def test_http_shows_and_takes_types(tmp_path, clock) -> None:
    async with (
        connect(small_config(tmp_path), clock=clock) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address) as http,
    ):
        body = {"events": [{"payload": {"euros": 5}, "type": "order-placed"}, {"payload": {}}]}
        assert (await http.post("/journals/orders/o-1", json=body)).status_code == 201
        assert await payloads(log.journal("orders", TYPES)) == [OrderPlaced(500, "EUR"), {}]
        typed, plain = (await http.get("/journals/orders/o-1")).json()["events"]
        assert (typed["type"], typed["type_version"], typed["payload"]) == ("order-placed", 1, {"euros": 5})
        assert (plain["type"], plain["type_version"]) == (None, None)
        for bad in ({"type": ""}, {"type_version": 2}, {"type": "a", "type_version": 0}):
            answer = await http.post("/journals/orders/o-2", json={"events": [{"payload": {}, **bad}]})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid-event-type"), bad


async def test_a_copy_keeps_the_types(tmp_path, clock) -> None:
    async with connect(small_config(tmp_path), clock=clock) as log:
        await log.journal("orders", TYPES).append("o-1", [PLACED, PAID])
        await replicate(log)
        await log.journal("orders").append("o-1", [Event(b"\x01"), Event(SHIPPED)])
        copier = Copier(await Original.find(log.parts, "orders"), log.journal("copies"))
        await copier.copy("o-1")
        assert await payloads(log.journal("copies", TYPES)) == [PLACED, PAID, b"\x01", SHIPPED]
        again = await copier.copy("o-1")
        assert again is not None
        assert (again.written, again.present) == (0, 4)


def test_the_sync_api_has_types(tmp_path) -> None:
    with everlog.sync.connect(small_config(tmp_path)) as log:
        orders = log.journal("orders", TYPES)
        orders.append("o-1", [PLACED])
        orders.append("o-1", Event(PAID, tags={"eu"}), expected=1)
        assert [one.payload for one in orders.read("o-1")] == [PLACED, PAID]
        assert [one.payload for one in orders.recover("o-1").events] == [PLACED, PAID]


async def test_pydantic_models_are_events(either: Everlog) -> None:
    @everlog.event("order-rated", version=2)
    class OrderRated(pydantic.BaseModel):
        stars: int
        by: str = pydantic.Field(alias="from")
        at: datetime | None = None

    @everlog.upcast(OrderRated, 1)
    def named(old: dict[str, Any]) -> dict[str, Any]:
        return {"stars": old["stars"], "from": "unknown"}

    rated = OrderRated(**{"stars": 5, "from": "bob", "at": datetime(2030, 1, 1, tzinfo=UTC)})
    orders = either.journal("orders", OrderRated | OrderPaid)
    await orders.append("o-1", rated)
    await orders.append("o-1", [rated, PAID])
    await either.journal("orders").append("o-1", Event({"stars": 1}, type="order-rated"))
    assert await payloads(orders) == [rated, rated, PAID, OrderRated(**{"stars": 1, "from": "unknown"})]


class Box(pydantic.BaseModel):
    """What it computes is no part of what it was given, and is refused as such."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    sides: tuple[int, int]
    at: datetime

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.sides[0] * self.sides[1]


@everlog.event("boxed")
@dataclass
class Boxed:
    box: Box | None
    others: list[Box]


@everlog.event("packed")
class Packed(msgspec.Struct):
    box: Box


@everlog.event("moved")
@pydantic.dataclasses.dataclass
class Moved:
    box: Box


@everlog.event("shelved")
class Shelved(pydantic.BaseModel):
    box: Box


BOX = Box(sides=(2, 3), at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "given", [Boxed(BOX, [BOX]), Boxed(None, []), Packed(BOX), Moved(BOX), Shelved(box=BOX)], ids=repr
)
async def test_pydantic_models_inside_events(either: Everlog, given: Any) -> None:
    boxes = either.journal("boxes", type(given))
    await boxes.append("b", given)
    assert await payloads(boxes, "b") == [given]


@everlog.event("loose")
@dataclass
class Loose:
    anything: Any


@everlog.event("login")
class Login(pydantic.BaseModel):
    password: pydantic.SecretStr = pydantic.SecretStr("")
    hidden: int = pydantic.Field(default=1, exclude=True)
    _seen: float = pydantic.PrivateAttr(default_factory=time.monotonic)


@everlog.event("wrapped")
class Wrapped(msgspec.Struct):
    inner: Loose


@everlog.event("nameless")
@dataclass(eq=False)
class Nameless:
    anything: Any


@dataclass(eq=False)
class Line:
    """Without an equality of its own."""

    amount: Any


@everlog.event("invoice")
@dataclass
class Invoice:
    lines: list[Line]
    by_day: dict[str, tuple[Line, ...]]


async def test_what_has_no_equality_may_be_inside_of_others(log: Everlog) -> None:
    sent = Invoice([Line(1)], {"monday": (Line(2), Line(3))})
    journal = log.journal("invoices", Invoice)
    await journal.append("i-1", Event(sent))
    (found,) = [event.payload async for event in journal.read("i-1")]
    assert ([line.amount for line in found.lines], [line.amount for line in found.by_day["monday"]]) == ([1], [2, 3])
    for wrong in (Invoice([Line({1})], {}), Invoice([], {"monday": (Line(1), Line({2}))})):
        with pytest.raises(InvalidInput, match=r"amount"):
            await journal.append("i-1", Event(wrong))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (Loose({1: "a"}), "anything"),
        (Loose({1, 2}), "anything"),
        (Loose(datetime(2030, 1, 1, tzinfo=UTC)), "anything"),
        (Loose(OrderSentV1("x")), "anything"),
        (Nameless({1: "a"}), "anything"),
        (Wrapped(Loose((1, 2))), "inner.anything"),
        (Login(password=pydantic.SecretStr("hush")), "password"),
        (Login(hidden=2), "hidden"),
    ],
    ids=repr,
)
async def test_nothing_is_stored_that_would_come_back_as_something_else(
    either: Everlog, changed: Any, name: str
) -> None:
    notes = either.journal("notes", Loose | Wrapped | Login | Nameless)
    for given in (changed, [Loose(1), Event(changed)]):
        with pytest.raises(InvalidEventType, match=f"'{name}' would be read back as"):
            await notes.append("n", given)
    assert await notes.pointer("n") is None


@pytest.mark.parametrize("given", [Loose({"a": [1, 2.5, None]}), Nameless("x"), Login()], ids=repr)
async def test_what_a_class_does_not_compare_does_not_matter(log: Everlog, given: Any) -> None:
    notes = log.journal("notes", Loose | Nameless | Login)
    await notes.append("n", given)
    (found,) = await payloads(notes, "n")
    assert type(found) is type(given)


# Declarations


class Undeclared(msgspec.Struct):
    a: int


class Heir(OrderPaid):
    pass


@everlog.event("plain")
class Plain:
    pass


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (Undeclared, "Undeclared is not declared as an event"),
        (OrderPaid | Undeclared, "Undeclared is not declared as an event"),
        (Heir, "Heir is not declared as an event"),
        (Plain, "Plain is no dataclass, msgspec Struct or pydantic model"),
        ([], "no classes of events are given"),
        ("OrderPaid", "'OrderPaid' is not declared"),
        (3, "3 is not declared"),
        ([OrderPaid, OrderPaid], "both 'order-paid' version 1"),
        (OrderPaid | None, "NoneType is not declared"),
    ],
)
def test_wrong_sets_of_classes(types: Any, says: str, tmp_path) -> None:
    with everlog.sync.connect(small_config(tmp_path)) as log:
        with pytest.raises(InvalidEventType, match=says):
            log.journal("orders", types)
        with pytest.raises(InvalidEventType, match=says):
            log.tag("eu", types)
    with pytest.raises(InvalidEventType, match=says):
        everlog.tag("eu", types)
    with pytest.raises(InvalidEventType, match=says):
        everlog.slices(2, types)


def test_two_classes_of_one_name_and_version() -> None:
    @everlog.event("order-paid")
    class Other(msgspec.Struct):
        a: int

    with pytest.raises(InvalidEventType, match="OrderPaid and Other are both 'order-paid' version 1"):
        EventTypes.of(OrderPaid | Other)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, 3, None, "\ud800"])
def test_wrong_names(name: Any) -> None:
    with pytest.raises(InvalidEventType):
        everlog.event(name)
    if name is not None:
        with pytest.raises(InvalidEventType):
            Event({}, type=name)


@pytest.mark.parametrize("version", [0, -1, 2**31, True, "1", 1.0])
def test_wrong_versions(version: Any) -> None:
    with pytest.raises(InvalidEventType):
        everlog.event("a", version=version)
    with pytest.raises(InvalidEventType):
        Event({}, type="a", type_version=version)


def test_wrong_types_of_an_event() -> None:
    with pytest.raises(InvalidEventType, match="goes with a type"):
        Event({}, type_version=2)
    with pytest.raises(InvalidEventType, match="leave out the type"):
        Event(PAID, type="order-placed")
    assert Event(PAID, type="order-paid").event_type == ("order-paid", 1)


def test_wrong_steps() -> None:
    def step(old: Any) -> Any:
        return old

    @everlog.event("box")
    class Box1(msgspec.Struct):
        pass

    @everlog.event("box", version=2)
    class Box2(msgspec.Struct):
        pass

    for target, source, says in [
        (Undeclared, 1, "not declared"),
        (OrderPaid, 1, "does not lead to it"),
        (OrderPlaced, 3, "does not lead to it"),
        (OrderPlaced, 0, "version of an event"),
        (OrderPlaced, Undeclared, "not declared"),
        (OrderPaid, OrderPaid, "raise the version"),
        (Box1, Box2, r"does not lead to it: write @everlog.upcast\(Box2, Box1\)"),
    ]:
        with pytest.raises(InvalidEventType, match=says):
            everlog.upcast(target, source)
    with pytest.raises(InvalidEventType, match="a step from 'order-placed' version 1 to OrderPlaced already"):
        everlog.upcast(OrderPlaced, 1)(step)

    not_a_function: Any = 5
    with pytest.raises(InvalidEventType, match="stands above a function"):
        everlog.upcast(OrderShipped, 1)(not_a_function)

    @everlog.event("broken-chain", version=3)
    @dataclass
    class Broken:
        pass

    everlog.upcast(Broken, 1)(step)
    with pytest.raises(InvalidEventType, match=r"add @everlog.upcast\(Broken, 2\)"):
        EventTypes.of(Broken)


async def test_an_older_class_has_steps_of_its_own(log: Everlog) -> None:
    @everlog.event("told", version=2)
    @dataclass
    class Told:
        words: list[str]

    @everlog.event("said", version=5)
    @dataclass
    class Said:
        words: int

    @everlog.upcast(Told, 1)
    def split(old: dict[str, str]) -> dict[str, list[str]]:
        return {"words": old["text"].split()}

    @everlog.upcast(Said, Told)
    def counted(old: Told) -> Said:
        return Said(len(old.words))

    await log.journal("notes").append(
        "n", [Event({"text": "a rose is"}, type="told"), Event(Told(["a"])), Event(Said(7))]
    )
    assert await payloads(log.journal("notes", Said), "n") == [Said(3), Said(1), Said(7)]

    @everlog.upcast(Told, Said)
    def back(old: Said) -> Told:
        return Told([])

    with pytest.raises(InvalidEventType, match="lead back to itself"):
        log.journal("notes", Said)


async def test_journals_by_persistence_id_have_classes(either: Everlog) -> None:
    await either.journal("orders", TYPES).append("o-1", [PLACED, PAID])
    found = either.events_by_persistence_id("orders", "o-1", types=TYPES)
    assert [one.payload async for one in found] == [PLACED, PAID]


def test_typing_unions_and_old_spellings() -> None:
    assert EventTypes.of(Union[OrderPaid, OrderPlaced]).classes == (OrderPaid, OrderPlaced)  # type: ignore[arg-type] # noqa: UP007
    assert isinstance(InvalidEventType("x"), InvalidInput)
    assert EventTypes.of(EventTypes.of(OrderPaid)).classes == (OrderPaid,)


async def test_a_version_with_a_class_of_its_own_is_read_as_that(log: Everlog) -> None:
    old = OrderSentV1("High Street 2, Oxford")
    await log.journal("orders").append("o-1", Event(old))
    assert await payloads(log.journal("orders", OrderSentV1 | OrderShipped)) == [old]
    assert await payloads(log.journal("orders", OrderShipped)) == [OrderShipped("High Street 2", "Oxford")]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
async def test_what_comes_out_can_be_copied_and_pickled(either: Everlog, duplicate: Any) -> None:
    """For a cache, a queue between processes, or Spark."""
    orders = either.journal("orders", TYPES)
    token = await orders.append("o-1", PLACED)
    await either.journal("orders").append("o-1", Event({"euros": 3}, type="order-placed"))
    again = duplicate(token)
    assert (type(again), again, again.range, again.life) == (type(token), token, token.range, token.life)
    version = await orders.pointer("o-1")
    assert version is not None
    assert (duplicate(version), duplicate(version).life) == (version, version.life)
    found = [duplicate(one) async for one in orders.read("o-1")]
    assert [one.payload for one in found] == [PLACED, OrderPlaced(300, "EUR")]
    assert [one.seq_nr for one in found] == [1, 2]


async def test_json_marks_stay_plain(log: Everlog) -> None:
    await log.journal("orders").append("o-1", Event(Json("x"), type="order-paid"))
    (found,) = [one async for one in log.journal("orders").read("o-1")]
    assert (found.payload, found.type) == ("x", "order-paid")
