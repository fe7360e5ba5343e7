"""No filter stops the server: whatever it costs is counted, ends within its budget, and lets others be served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.api import Everlog
from everlog.client import connect
from everlog.documents import order
from everlog.documents.bodies import same
from everlog.documents.documents import LocalDocuments
from everlog.documents.evaluator import Evaluator
from everlog.documents.filters.budget import LOOP_TURN, Budget, BudgetLimits, TurnOver
from everlog.documents.filters.evaluation import make_matcher
from everlog.documents.filters.parser import is_parsed, parse_filter
from everlog.documents.filters.values import contains, equal, identity
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.documents.order import MAX_FIELD_CHARS, MAX_SORTS, FirstElements, complete, parse_sort
from everlog.errors import FilterTooExpensive, InvalidDocument, QueryLimited
from tests.documents.test_documents import config_of
from tests.models.document_filter import has as naive_has
from tests.models.document_filter import naive_sorted

MAX_QUERY_STEPS = 1_000_000
MAX_ELEMENT_STEPS = 200_000
COLLIDING = 2**61 - 1  # whose multiples all have the hash 0


class Worst(NamedTuple):
    """A filter, and an element that it takes long for."""

    filter: str
    element: dict[str, Any]


def many(operator: str, part: str, count: int = 90) -> str:
    return f" {operator} ".join([part] * count)


LISTS = {"a": [str(number) for number in range(5000)], "b": [str(number) for number in range(5000)]}
OBJECTS = {"a": [[number, {"x": number}] for number in range(3000)]}
TEXT = {"a": "ß" * 200_000}
WORST = {
    "a list has a list": Worst(many("and", "b has a"), LISTS),
    "numbers whose hashes collide": Worst(
        many("and", "a has a"), {"a": [number * COLLIDING for number in range(3000)]}
    ),
    "objects with objects": Worst(many("and", "a = b"), {**OBJECTS, "b": OBJECTS["a"]}),
    "a list has objects": Worst(
        many("and", "a has b"), {"a": [{"x": number} for number in range(3000)], "b": [{"x": 1}, {"x": 2}] * 1000}
    ),
    "lists doubled": Worst("(" * 60 + "a" + "+a)" * 60, {"a": list(range(5000))}),
    "texts joined": Worst(many("+", "a", 60), TEXT),
    "templates": Worst('s"' + "${a}" * 60 + '" = "x"', OBJECTS),
    "a literal that holds an object often": Worst("'x' = s\"${[" + many(",", "[a,a,a]", 90) + ']}"', OBJECTS),
    "cases": Worst(many("and", "upper(a) != lower(a)"), TEXT),
    "cases ignored": Worst(many("and", "compare_ignoring_case(a, a) = 0"), TEXT),
    "long texts": Worst(many("and", "a = b and a <= b", 49), {**TEXT, "b": TEXT["a"]}),
    "a text in a text": Worst(many("or", "a has b"), {"a": "a" * 100_000, "b": "a" * 40 + "b" + "a" * 40}),
    "texts in a text": Worst("a has b", {"a": "a" * 300_000 + "b", "b": ["aaab"] * 10_000}),
    "the place of a text": Worst(many("or", "index_of(a, 'aaaaaaaab') = 1"), {"a": "a" * 300_000}),
    "a pattern": Worst(many("or", 'a like "[ab]*a[ab]{40}c"'), {"a": "abbabaab" * 20_000}),
    "pieces": Worst(many("and", "length(split(a, ';')) > 0"), {"a": "b;" * 50_000}),
    "pieces of any length": Worst(many("and", "length(split(a, 'b*;')) > 0"), {"a": "b;" * 50_000}),
    "times": Worst(many("and", "format_unix_time(1, a) != 'x'"), {"a": "yyyy-MM-dd HH" * 5000}),
    "zones": Worst(many("and", "format_unix_time(1, 'yyyy', a) != ''"), {"a": "Europe/Berlin"}),
    "parsed times": Worst(many("and", "parse_unix_time(a, ' yyyy') > 0"), {"a": " " * 200_000 + "2020"}),
}  # fmt: skip


class Ticker:
    """A second task on the event loop: how often it is served."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.count += 1

    async def during(self, work: Callable[[], Any]) -> tuple[int, float]:
        """Ticks and seconds while something is awaited."""
        started, before = time.monotonic(), self.count
        await work()
        return self.count - before, time.monotonic() - started

    async def rate(self, work: Callable[[], Any]) -> float:
        """Ticks per second."""
        ticks, seconds = await self.during(work)
        return ticks / seconds


@pytest.fixture
async def log(tmp_path) -> AsyncIterator[Everlog]:
    config = config_of(
        tmp_path / "data", max_query_steps=MAX_QUERY_STEPS, max_element_steps=MAX_ELEMENT_STEPS, max_query_requests=1000
    )
    async with connect(config) as log:
        yield log


@pytest.fixture
def docs(log: Everlog) -> LocalDocuments:
    assert isinstance(log.documents, LocalDocuments)
    return log.documents


@pytest.fixture
def spent(docs: LocalDocuments, monkeypatch) -> list[Budget]:
    """The budgets of queries and of elements, as they are handed out."""
    found: list[Budget] = []
    for name in ("of_query", "of_element"):
        make = getattr(docs.evaluator, name)

        def noted(*arguments: Any, make: Callable[..., Budget] = make) -> Budget:
            found.append(make(*arguments))
            return found[-1]

        monkeypatch.setattr(docs.evaluator, name, noted)
    return found


async def test_the_worst_filters_end_within_their_budgets_and_the_loop_goes_on(docs, spent) -> None:
    """As filters of queries, of indexes, of views and of template indexes."""
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    quiet = await ticker.rate(lambda: asyncio.sleep(0.2))
    ticks, seconds = 0, 0.0
    for number, (name, (text, element)) in enumerate(WORST.items()):
        uri = f"c{number}~"
        await docs.put_template_index(f"t{number}", f"c{number}{{*}}~", IndexNew(filter_by=text))
        for item in "123":
            await docs.put(f"{uri}/{item}", element)
        await docs.create_index(uri, IndexNew("i", (IndexSortItem("a"),), text))
        await docs.build_indexes()
        await docs.put(f"c{number}x~/1", element)
        await docs.settle(f"c{number}x~")
        failed = {
            one.index_id: one for one in (await docs.index(uri, "i"), await docs.index(f"c{number}x~", f"t{number}"))
        }

        async def query(text: str = text, uri: str = uri) -> None:
            with pytest.raises(FilterTooExpensive) as caught:
                await docs.list(uri, filter=text, explain=True)
            assert caught.value.code == "filter-too-expensive", text

        async def show(text: str = text, element: Any = element) -> None:
            with pytest.raises(FilterTooExpensive):
                await docs.evaluator.matches(text, element, 0)

        spent.clear()
        for work in (query, show):
            found = await ticker.during(work)
            ticks, seconds = ticks + found[0], seconds + found[1]
        assert all(index.status is IndexStatus.FAILED for index in failed.values()), (name, failed)
        assert all("[documents] max_element_" in (index.reason or "") for index in failed.values()), name
        (of_query, of_view) = spent
        # What did not fit was not begun: beyond the budget is at most what one search may take.
        assert of_query.spent < 2 * MAX_QUERY_STEPS or of_query.bytes_left < 0, name
        assert of_view.spent < 2 * MAX_QUERY_STEPS or of_view.bytes_left < 0, name
    ticking.cancel()
    assert ticks / seconds > quiet / 20, (ticks, seconds, quiet)


numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [10, 100, COLLIDING, 2 * COLLIDING, Decimal("1.0"), Decimal("1E+1"), Decimal("-0.0"), Decimal("0.10")]
    ),
)
scalars = st.none() | st.booleans() | numbers | st.sampled_from(["", "1", "true", "null", "a" * 300])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from("xy"), inner), max_leaves=12
)


@given(values, values)
def test_equality_is_the_naive_one(left, right):
    """As structural and strict as that of merge patches, one way round and the other, and by identities."""
    budget = Budget()
    assert equal(left, right, budget) == same(left, right) == equal(right, left, budget)
    assert (identity(left, budget) == identity(right, budget)) == same(left, right)


@given(st.lists(values, max_size=8) | st.dictionaries(st.sampled_from("xyz"), values), values | st.lists(values))
def test_has_is_the_naive_one(whole, part):
    assert contains(whole, part, Budget()) == naive_has(whole, part)
    known = list(whole.values()) if isinstance(whole, dict) else whole
    assert contains(whole, known * 2, Budget()) == naive_has(whole, known * 2)


@pytest.mark.parametrize("kind", [str, Decimal, lambda number: {"x": number}, lambda number: number * COLLIDING])
def test_has_is_linear(kind):
    """Ten times as many items cost ten times as many steps, also where all hashes of the numbers collide."""
    spent = []
    for count in (300, 3000):
        found = Budget(10**9)
        assert contains([kind(number) for number in range(count)], [kind(number) for number in range(count)], found)
        spent.append(found.spent)
    assert 8 < spent[1] / spent[0] < 12
    assert len({hash(identity(kind(number), Budget())) for number in range(1000)}) > 990


def test_the_steps_of_a_filter_do_not_depend_on_when_its_turns_end():
    text, element = WORST["a list has a list"]
    whole = Budget(10**9)
    make_matcher(parse_filter(text))(element, 0, whole)

    async def in_turns() -> Budget:
        evaluator = Evaluator(BudgetLimits(element_steps=10**9))
        budget, matches = evaluator.of_element(), make_matcher(parse_filter(text))
        assert await evaluator.run(budget, lambda: matches(element, 0, budget))
        await evaluator.aclose()
        return budget

    assert asyncio.run(in_turns()).spent == whole.spent > 10 * LOOP_TURN


async def test_work_goes_on_behind_what_is_done() -> None:
    """Each piece once, whether it fits into a turn of the event loop, only into one of the thread, or into none."""
    evaluator = Evaluator()
    budget = Budget(10**8, deadline=lambda: False)
    waiting, done = [1, 10, LOOP_TURN // 2, LOOP_TURN // 2, LOOP_TURN // 2, 2 * LOOP_TURN, 10**6, 1, LOOP_TURN] * 3, []

    def work() -> int:
        while len(done) < len(waiting):
            for _ in range(10):
                budget.take(waiting[len(done)] // 10)
            done.append(len(done))
            budget.done()
        return len(done)

    assert await evaluator.run(budget, work) == len(waiting)
    assert done == list(range(len(waiting)))
    assert budget.spent == sum(one // 10 * 10 for one in waiting)
    await evaluator.aclose()


async def test_the_time_of_a_request_ends_inside_an_evaluation() -> None:
    """Also of a single element, and also when the caller no longer waits."""
    evaluator, looks = Evaluator(BudgetLimits(query_steps=10**12)), []
    text, element = WORST["numbers whose hashes collide"]
    matches = make_matcher(parse_filter(text))
    budget = evaluator.of_query(lambda: len(looks) > 20 or looks.append(1) is not None)
    with pytest.raises(QueryLimited) as caught:
        await evaluator.run(budget, lambda: matches(element, 0, budget))
    assert caught.value.code == "query-timeout"
    endless = Budget(50_000_000, deadline=lambda: False)

    def spin() -> None:
        while True:
            endless.take(1)

    task = asyncio.create_task(evaluator.run(endless, spin))
    while not endless.pauses:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    await evaluator.aclose()  # it waits for the thread
    assert task.cancelled()
    assert endless.left > endless.max_steps // 2


async def test_a_turn_ends_before_work_that_may_not_fit() -> None:
    """A search whose worst case is longer than a turn is not begun on the event loop."""
    budget = Budget(10**9)
    budget.begin_turn()
    with pytest.raises(TurnOver):
        make_matcher(parse_filter('a like "[ab]*a[ab]{40}c"'))({"a": "ab" * 50_000}, 0, budget)
    assert budget.spent < LOOP_TURN


LONG_FILTERS = {
    "parentheses": "(" * 4000 + "a" + ")" * 4000,
    "ors": many("or", "a=1", 1000),
    "nots": "!" * 8000 + "a",
    "items": "a has [" + many(",", "1", 2000) + "]",
    "templates": 's"' + "${a}" * 1900 + '" = 1',
    "patterns": many("or", 'a like "(a?b?){900}"', 90),
}


async def test_long_filters_are_read_off_the_loop() -> None:
    """Read once, then known."""
    evaluator, ticker = Evaluator(), Ticker()
    ticking = asyncio.create_task(ticker.run())
    quiet = await ticker.rate(lambda: asyncio.sleep(0.2))

    async def read() -> None:
        for text in LONG_FILTERS.values():
            for _ in range(2):
                try:
                    await evaluator.parse(text)
                    assert is_parsed(text)
                except InvalidDocument as error:
                    assert "levels" in str(error)  # noqa: PT017

    assert await ticker.rate(read) > quiet / 20
    ticking.cancel()
    await evaluator.aclose()


def test_the_fields_of_a_sort_are_bounded(monkeypatch) -> None:
    """They are read on the event loop: none that is long, and not more than a sort may have."""
    read: list[str] = []

    def noted(text: str) -> Any:
        read.append(text)
        return parse_filter(text)

    monkeypatch.setattr(order, "parse_filter", noted)
    for text in ("(" * 8000 + "a", ".".join("a" * 4000), "x" * 9000, ",".join(["a"] * 4000)):
        with pytest.raises(InvalidDocument) as caught:
            parse_sort(text)
        assert caught.value.code == "invalid-sort"
        assert len(str(caught.value)) < 200
    assert len(read) <= MAX_SORTS + 1
    assert max(map(len, read)) <= MAX_FIELD_CHARS


@given(st.lists(st.tuples(st.none() | st.integers(0, 3) | st.sampled_from("ab"), st.integers(0, 2))), st.integers(1, 5))
def test_the_first_of_portions_are_the_first_of_all(rows, size):
    elements = [{"id": f"i{number:03}", "a": a, "b": b} for number, (a, b) in enumerate(rows)]
    for text, sort in (("a,-b", [("a", False), ("b", True)]), ("-a", [("a", True)]), ("b", [("b", False)])):
        first = FirstElements(elements, complete(parse_sort(text)), size, portion=3)
        assert first.take(Budget()) == naive_sorted(elements, sort)[:size]


async def test_a_large_sort_is_paid_for(docs, spent) -> None:
    for number in range(60):
        await docs.put(f"c~/{number}", {"a": "x" * 60_000 + str(-number)})
    page = await docs.list("c~", sort="a", size=1)
    assert page.elements[0]["id"] == "1"
    assert spent[-1].spent > 60 * 60_000 // 16
    for number in range(60):
        await docs.put(f"d~/{number}", {"a": [{"x": n} for n in range(3000)]})
    with pytest.raises(FilterTooExpensive):
        await docs.list("d~", sort="a", size=1)


def test_what_is_built_for_one_element_does_not_count_for_the_next() -> None:
    budget = Budget(10**9, 1000)
    matches = make_matcher(parse_filter('a + a = "x"'))
    for _ in range(10):
        assert not matches({"a": "y" * 400}, 0, budget)
    with pytest.raises(FilterTooExpensive, match="max_element_bytes"):
        matches({"a": "y" * 600}, 0, budget)
