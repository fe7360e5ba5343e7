"""What a declaration takes: what cannot work is refused by name when it is declared, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import everlog
from everlog import (
    Event,
    Recovery,
    Restart,
    at_least_once,
    events,
    exactly_once,
    flow,
    grouped,
    on_spark,
    records,
    slices,
    tag,
)
from everlog.errors import EverlogError, InvalidInput, InvalidProjection
from everlog.projections.copies import Copies
from everlog.projections.projection import Projection
from tests.support import small_config

HALF = "\ud800"


async def handler(event) -> None:
    """Does nothing."""


async def with_view(event, view) -> None:
    """Does nothing either."""


def declare(**settings: Any) -> Projection:
    return Projection(**{"name": "words", "source": events("orders"), "handler": handler, **settings})


WRONG: dict[str, list[Any]] = {
    "version": [2, None, 1.5, True, b"2", HALF, "v" * 1001, object()],
    "observers": [5, None, "x", [5], object()],
    "timeout_s": [-1, 0, "x", True, float("nan"), float("inf"), object()],
    "recovery": ["skip", 5, True, object()],
    "restart": [3, "x", True, object()],
    "strategy": ["exactly_once", 5, True, object()],
    "factory": ["yes", 1, None],
    "tables": ["words", [1], 5, None, [""], [HALF], [None], {"words": 1}, object()],
}


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, some in WRONG.items() for one in some])
def test_a_wrong_setting_is_refused_when_it_is_declared(name, value):
    with pytest.raises(InvalidProjection, match=name.split("_")[0].rstrip("s")):
        declare(**{name: value})


NO_COUNT = ["2", 1.5, None, True, 0, -1, HALF, float("nan"), object(), []]
NO_TIME = ["x", True, -1, float("nan"), float("inf"), None, object()]
NO_TOPIC = [5, None, "", b"x", "a b", "x" * 300, HALF, "a/b", object()]
PARTS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "events topic": (events, NO_TOPIC),
    "records topic": (records, NO_TOPIC),
    "events split": (lambda wrong: events("orders", split=wrong), NO_COUNT),
    "records split": (lambda wrong: records("orders", split=wrong), NO_COUNT),
    "events partial": (lambda wrong: events("orders", partial=wrong), ["yes", 1, None]),
    "tag": (tag, [None, 5, "", b"x", HALF, True, object()]),
    "slices": (slices, [*NO_COUNT, 3, 128]),
    "save_every": (lambda wrong: at_least_once(save_every=wrong), NO_COUNT),
    "within_s": (lambda wrong: at_least_once(within_s=wrong), [*NO_TIME, 0]),
    "parallelism": (lambda wrong: at_least_once(parallelism=wrong), [*NO_COUNT, 10_001]),
    "group size": (lambda wrong: grouped(size=wrong), NO_COUNT),
    "group within_s": (lambda wrong: grouped(within_s=wrong), [*NO_TIME, 0]),
    "flow": (lambda wrong: flow(save_every=wrong), NO_COUNT),
    "exactly_once": (lambda wrong: exactly_once(size=wrong), NO_COUNT),
    "on_spark": (lambda wrong: on_spark(max_events=wrong), NO_COUNT),
    "retries": (Recovery.retry_and_skip, ["2", 1.5, None, True]),
    "retry delay": (lambda wrong: Recovery.retry_and_fail(3, wrong), NO_TIME),
    "restart min_s": (lambda wrong: Restart(min_s=wrong), NO_TIME),
    "restart max_s": (lambda wrong: Restart(max_s=wrong), NO_TIME),
    "random_factor": (lambda wrong: Restart(random_factor=wrong), [*NO_TIME, 2]),
    "max_restarts": (lambda wrong: Restart(max_restarts=wrong), ["2", 1.5, True, -1]),
}


@pytest.mark.parametrize(
    ("make", "value"), [(make, one) for make, some in PARTS.values() for one in some], ids=lambda one: ascii(one)[:30]
)
def test_a_wrong_part_of_a_declaration_is_refused(make, value):
    with pytest.raises(InvalidInput):
        make(value)


async def test_only_projections_are_run_rebuilt_and_verified(tmp_path):
    """Their names alone do not say what to call."""
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        for wrong in ("words", None, 5, [declare()]):
            for use in (log.projections.runner, log.projections.rebuild, log.projections.verify):
                with pytest.raises(InvalidProjection, match="a Projection"):
                    await use(wrong)
            with pytest.raises(InvalidProjection, match="a Projection"):
                await log.projections.verify(wrong, "words")
            with pytest.raises(InvalidProjection, match="a Projection"):
                async with log.projections.run(wrong):
                    pass
        assert await log.projections.list() == []


async def test_no_declaration_makes_the_list_unreadable(tmp_path):
    """A version that is no text was written as it was, and then no projection of the store could be listed."""
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        token = await log.journal("orders").append("o", Event("x"))
        async with log.projections.run(declare(name="fine")):
            await log.projections.wait("fine", token)
            with pytest.raises(InvalidProjection, match="version"):
                declare(handler=with_view, strategy=exactly_once(), version=2)
            sneaky = declare(handler=with_view, strategy=exactly_once())
            sneaky.version = 2  # type: ignore[assignment]
            async with log.projections.run(sneaky):
                with pytest.raises(EverlogError):
                    await log.projections.wait("words", token, seconds=0.5)
            assert [one.name for one in await log.projections.list()] == ["fine"]
            assert await log.projections.copies("words") == Copies()
