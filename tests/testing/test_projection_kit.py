"""The test kit: what users test their own projections with."""

from __future__ import annotations

import asyncio

import pytest

from everlog.projections.lifecycle import Restart
from everlog.testing import ListProvider, MemoryOffsets, per_envelope, projection_sink, run_projection
from tests.models.projection_fixture import ENVELOPES, ID, Joined, declare
from tests.projections.test_runs import ALL, virtually


def provider(**settings) -> ListProvider:
    return ListProvider(ENVELOPES, lambda one: one.offset, **settings)


@virtually
async def test_a_run_ends_when_the_assertion_holds(store):
    joined = Joined()

    def check() -> None:
        assert joined.result == ALL

    await run_projection(declare(joined, provider()), check)
    assert joined.calls == 6


@virtually
async def test_a_run_without_success_ends_in_time_with_the_last_problem(store):
    loop = asyncio.get_running_loop()
    before = loop.time()

    def check() -> None:
        raise AssertionError("never")

    with pytest.raises(AssertionError, match="never"):
        await run_projection(declare(Joined(), provider()), check, seconds=2.0)
    assert 1.9 <= loop.time() - before <= 2.3
    with pytest.raises(AssertionError, match="still False"):
        await run_projection(declare(Joined(), provider()), lambda: False, seconds=0.2)


@virtually
async def test_a_failure_of_the_stream_is_raised_without_a_restart(store):
    joined = Joined(fail_at=4, times=99)
    projection = declare(joined, provider(), restart=Restart())
    with pytest.raises(ValueError, match="cannot take jkl"):
        await run_projection(projection, lambda: False, store=store)
    assert joined.calls == 4
    assert projection.restart == Restart(), "the projection itself is as it was"


@virtually
async def test_the_store_of_the_kit_remembers_all_offsets(store):
    assert isinstance(store, MemoryOffsets)
    assert store.last_offset is None
    await run_projection(per_envelope(declare(Joined(), provider())), lambda: store.last_offset == 6, store=store)
    assert store.all_offsets == [6, 5, 4, 3, 2, 1]
    assert await store.load(ID) == 6


@virtually
async def test_a_list_starts_where_it_is_told(store):
    joined = Joined()
    source = provider(start_from=lambda stored, one: one.offset <= stored)
    await run_projection(per_envelope(declare(joined, source)), lambda: store.last_offset == 6, store=store)
    await store.set_offset(ID, 4)
    await run_projection(per_envelope(declare(joined, source)), lambda: store.last_offset == 6, store=store)
    await run_projection(per_envelope(declare(joined, source)), lambda: joined.calls == 8, store=store)
    assert joined.result == f"{ALL}|mno|pqr"


@virtually
async def test_an_async_source_that_completes(store):
    async def envelopes():
        for envelope in ENVELOPES:
            yield envelope

    joined = Joined()
    source = ListProvider(envelopes(), lambda one: one.offset, completes=True)
    await run_projection(declare(joined, source), lambda: joined.result == ALL)


@virtually
async def test_a_sink_sets_the_pace(store):
    """It starts with the first request; one element per stored offset."""
    joined = Joined()
    async with projection_sink(per_envelope(declare(joined, provider()))) as sink:
        await asyncio.sleep(10)
        assert joined.calls == 0
        assert await sink.request(2) == [1, 2]
        await asyncio.sleep(10)
        assert joined.calls == 3, "the third is handled, its save waits for demand"
        assert await sink.request(4) == [3, 4, 5, 6]
    assert joined.result == ALL
