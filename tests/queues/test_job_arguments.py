"""What a function's signature says: which parameter is the job, and what the others take."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

import everlog
from everlog import Job
from everlog.errors import InvalidInput
from everlog.queues.job_function import JobFunction, find_jobs
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from tests.waiting import until

if TYPE_CHECKING:
    from elsewhere import Later, lib  # at run time there is neither


@dataclasses.dataclass(frozen=True)
class Address:
    town: str
    number: int = 1


class Line(msgspec.Struct, frozen=True):
    sku: str
    price: Decimal


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Model:
    """As much of pydantic as counts: it is known by these methods."""

    def __init__(self, town: str) -> None:
        self.town = town

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.town == self.town

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("town"), str):
            raise TypeError("a model has a town")
        return cls(value["town"])

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        assert mode == "json"
        return {"town": self.town}


class Opaque:
    """JSON cannot hold it."""


def decorated(handler: Any, **options: Any) -> JobFunction:
    return everlog.job("jobs", **options)(handler)


def returned(function: JobFunction, **given: Any) -> Any:
    """What the function returns for a job with these arguments: put, stored as JSON, and read."""
    packed = function.arguments.pack(given)
    data = msgspec.json.decode(msgspec.json.encode(packed.data))
    return function.arguments.bind(AJob(data))()


class AJob(Job):
    """A job that has data, and nothing else."""

    def __init__(self, data: Any) -> None:
        self.found = data

    @property
    def data(self) -> Any:
        return self.found


def test_a_function_of_the_job_alone_takes_any_data():
    def named(job): ...
    def typed(task: Job): ...
    def other(whatever): ...
    def by_keyword(*, job): ...
    def positional(job, /): ...

    for handler in (named, typed, other, by_keyword, positional, [].append, functools.partial(named)):
        assert decorated(handler).arguments.raw, handler
    seen: list[Any] = []

    def note(*, job):
        seen.append(job.data)

    decorated(note).arguments.bind(AJob(b"\0"))()
    decorated(seen.append).arguments.bind(AJob(1))()
    assert seen[0] == b"\0"
    assert isinstance(seen[1], AJob)


VALUES: list[tuple[Any, Any]] = [
    (str, "é\0"),
    (int, 2**60),
    (float, 1.5),
    (bool, True),
    (bytes, b"\xff\0"),
    (None | int, None),
    (datetime, datetime(2026, 1, 31, 2, 30, tzinfo=UTC)),
    (date, date(2026, 1, 31)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Color, Color.BLUE),
    (Address, Address("Oslo", 2)),
    (Line, Line("a", Decimal("2.50"))),
    (list[Line], [Line("a", Decimal(1))]),
    (dict[int, Address], {7: Address("Rome")}),
    (set[str], {"a", "b"}),
    (tuple[int, str], (1, "a")),
    (Model, Model("Oslo")),
    (list[Model], [Model("Rome")]),
    (Model | None, Model("Oslo")),
    (Any, {"n": [1, None]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda one: repr(one)[:40])
def test_values_arrive_as_they_were_put(kind, value):
    def work(value): ...

    work.__annotations__["value"] = kind
    work = lambda job, value: value  # noqa: E731
    work.__annotations__["value"] = kind
    found = returned(decorated(work), value=value)
    assert (found, type(found)) == (value, type(value))


def test_pydantic_models():
    pydantic = pytest.importorskip("pydantic")

    class Strict(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        since: date
        town: str = pydantic.Field(alias="Town")

    def work(job, place):
        return place

    work.__annotations__["place"] = Strict
    given = Strict(since=date(2026, 1, 1), Town="Oslo")
    assert returned(decorated(work), place=given) == given
    with pytest.raises(InvalidInput, match="'place' does not fit"):
        decorated(work).arguments.pack({"place": {"since": "never", "Town": "Oslo"}})


def test_the_job_comes_by_its_name_or_its_type():
    def named(to: str, *, job, again: bool = False) -> Any:
        return (to, job.data, again)

    def typed(to: str, task: everlog.Job) -> Any:
        return (to, task.data)

    def for_checkers(to: str, task: lib.Job) -> Any:
        return (to, task.data)

    def without(to: str = "all") -> Any:
        return to

    assert returned(decorated(named), to="e") == ("e", {"to": "e"}, False)
    assert returned(decorated(typed), to="e") == ("e", {"to": "e"})
    assert returned(decorated(for_checkers), to="e") == ("e", {"to": "e"})
    assert returned(decorated(without)) == "all"
    assert decorated(without).arguments.bind(AJob(None))() == "all"


WRONG: dict[str, tuple[Any, str]] = {
    "untyped": (lambda job, to: None, "'to' has no type: write to: str"),
    "untyped with a default": (lambda job, to=1: None, "'to' has no type"),
    "args": (lambda *args: None, "declare each as a parameter"),
    "kwargs": (lambda job, **rest: None, "declare each argument"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_signature_that_is_none_of_a_job(name):
    handler, message = WRONG[name]
    with pytest.raises(InvalidInput, match=message):
        decorated(handler)


def test_more_signatures_that_are_none_of_a_job():
    def positional(to: str, /): ...
    def two_jobs(job, task: Job): ...
    def opaque(to: Opaque): ...
    def not_a_type(to: 5): ...  # type: ignore[valid-type]

    for handler, message in (
        (positional, "leave out the '/'"),
        (two_jobs, "job and task would both be the job"),
        (opaque, "'to' is a Opaque, which JSON cannot hold"),
        (not_a_type, "cannot be read from JSON"),
        (5, "stands above a function"),
    ):
        with pytest.raises(InvalidInput, match=message):
            decorated(handler)


def test_a_type_that_is_defined_later():
    """At the latest when a worker is made."""

    def work(later: Later) -> Any:
        return later

    function = decorated(work)
    with pytest.raises(InvalidInput, match="work: a type of an argument is not known: name 'Later'"):
        Worker(MemoryQueueStore(), [function])
    with pytest.raises(InvalidInput, match="name 'Later'"):
        function.arguments.pack({"later": {}})
    globals()["Later"] = Address
    try:
        assert returned(function, later=Address("Oslo")) == Address("Oslo")
        assert find_jobs(function) == [function]
    finally:
        del globals()["Later"]


def test_constraints_count():
    def work(percent: Annotated[int, msgspec.Meta(ge=0, le=100)]) -> int:
        return percent

    assert returned(decorated(work), percent=100) == 100
    with pytest.raises(InvalidInput, match="'percent' does not fit"):
        decorated(work).arguments.pack({"percent": 101})


async def welcome(job, to: str, retries: int = 3, at: Address | None = None, names: list[str] = []):  # noqa: B006
    return (to, retries, at)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "welcome: the argument 'to' is missing"),
    ({"to": 5}, "welcome: the argument 'to' does not fit: Expected `str`, got `int`"),
    ({"to": None}, "'to' does not fit"),
    ({"to": "e", "retries": "3"}, "'retries' does not fit"),
    ({"to": "e", "retries": float("nan")}, "argument 'retries' of welcome"),
    ({"to": "e", "too": 1}, "welcome has no argument 'too': it takes to, retries, at, names"),
    ({"to": "e", "job": 1}, "has no argument 'job'"),
    ({"to": "\ud800"}, "argument 'to' of welcome"),
    ({"to": "e", "at": {"number": 1}}, "'at' does not fit: .*town"),
    ({"to": "e", "at": Opaque()}, "'at' cannot be written as JSON"),
    ({"to": "e", "names": ["a", 1]}, r"'names' does not fit: .*\[1\]"),
    ({"to": "e", 5: 1}, "has no argument 5"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda one: str(one)[:40].encode("ascii", "replace").decode())
async def test_a_wrong_argument_is_an_error_before_anything_is_stored(given, message):
    function, store = decorated(welcome), MemoryQueueStore()

    class Log:
        def job_sender(self, function):
            return everlog.JobSender(function, lambda name: Queue(name, store))

    with pytest.raises(InvalidInput, match=message):
        await function.on(Log()).put_many([{"to": "fine"}, given])
    assert await store.names() == []


def test_a_cycle_is_no_argument():
    round_: list[Any] = []
    round_.append(round_)

    def work(value: Any): ...

    with pytest.raises(InvalidInput, match="'value'"):
        decorated(work).arguments.pack({"value": round_})


@pytest.mark.parametrize("data", ["text", b"\0", [1], 7, {"to": 5}, {}, {"to": "e", "new": 1}], ids=repr)
async def test_data_that_do_not_fit_are_a_dead_letter_at_once(data):
    """Whatever other programs put; the worker goes on."""
    ran: list[Any] = []

    async def work(to: str) -> None:
        ran.append(to)

    store = MemoryQueueStore()
    queue = Queue("jobs", store)
    await queue.put("bad", data)
    await queue.put("good", {"to": "e"})
    worker = Worker(store, [decorated(work)])
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.counted.total() == 2)
    worker.stop()
    await running
    (letter,) = await queue.dead()
    assert (letter.key, letter.cause, len(letter.attempts)) == ("bad", "failed", 1)
    assert (letter.reason or "").startswith("work")
    assert ran == ["e"]


def test_calls_reach_the_plain_function():
    def plain(to: str, n: int = 1) -> tuple[str, int]:
        return (to, n)

    assert decorated(plain)("e", n=2) == ("e", 2)
