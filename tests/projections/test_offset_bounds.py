"""Offsets that are set by command: only places that the source has, or has had."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import everlog
from everlog import Event, events, records, slices, tag
from everlog.errors import InvalidOffset
from everlog.projections.offsets import RecordPlace
from everlog.projections.projection import Projection
from everlog.testing import replicate
from tests.http_support import server
from tests.support import small_config
from tests.waiting import until

FAR = uuid.UUID("ffffffff-ffff-1fff-8000-000000000000")
NO_PLACES: list[dict[str, Any]] = [
    {"journal-orders-00": 0},
    {"journal-orders-99": 0},
    {"journal-orders-٣": 0},
    {"journal-orders-+0": 0},
    {"journal-orders-0": -7},
    {"journal-orders-0": -2},
    {"journal-orders-0": 1_000_000},
    {"journal-orders-0": 2**70},
    {"journal-orders-0": 0, "journal-orders-1": 1_000_000},
]


async def handler(event) -> None:
    """Does nothing."""


@pytest.mark.parametrize("source", [events("orders"), records("orders")], ids=["events", "records"])
async def test_a_topic_has_places_up_to_its_end_and_no_others(tmp_path, source):
    """Such an entry would be ignored, so that all comes again; or wait for a record that may never come."""
    async with server(small_config(tmp_path / "data"), writable=True) as (log, http):
        tokens = [await log.journal("orders").append(f"o-{number}", Event(number)) for number in range(6)]
        async with log.projections.run(Projection("seen", source=source, handler=handler)):
            for token in tokens:
                await log.projections.wait("seen", token)

            async def stored() -> bool:
                offset = await log.projections.offset("seen")
                return offset is not None and all(
                    offset.get(f"journal-orders-{one.partition}", -1) >= one.offset for one in tokens
                )

            await until(stored)
        before = await log.projections.offset("seen")
        for wrong in NO_PLACES:
            with pytest.raises(InvalidOffset):
                await log.projections.set("seen", None, wrong)
            body = {"offset": wrong, "type": "map"}
            assert (await http.put("/projections/seen/journal-orders/offset", json=body)).status_code == 400
        if source.describe()["kind"] == "events":
            for place in (RecordPlace(-1, 0), RecordPlace(0, -1), RecordPlace(1_000_000, 0)):
                with pytest.raises(InvalidOffset):
                    await log.projections.set("seen", None, {"journal-orders-0": place})
        assert await log.projections.offset("seen") == before, "nothing was stored"
        for right in (before, dict.fromkeys(before, -1), before):
            await log.projections.set("seen", None, right)
            assert await log.projections.offset("seen") == right


async def test_a_partition_belongs_to_one_key(tmp_path):
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        token = await log.journal("orders").append("o", Event("x"))
        async with log.projections.run(Projection("seen", source=events("orders", split=2), handler=handler)):
            await log.projections.wait("seen", token)
        with pytest.raises(InvalidOffset, match="no partition of the key"):
            await log.projections.set("seen", "journal-orders/0of2", {"journal-orders-1": -1})


@pytest.mark.parametrize("source", [tag("eu"), slices()], ids=["tag", "slices"])
async def test_a_tag_has_no_places_in_the_future(tmp_path, source):
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        token = await log.journal("orders").append("o", Event("x", tags={"eu"}))
        await replicate(log)
        async with log.projections.run(Projection("seen", source=source, handler=handler)):
            await log.projections.wait("seen", token)
        with pytest.raises(InvalidOffset, match="future"):
            await log.projections.set("seen", None, FAR)
        await log.projections.set("seen", None, uuid.uuid1())


async def test_a_number_is_no_place_of_a_tag_over_http(tmp_path):
    async with server(small_config(tmp_path / "data"), writable=True) as (log, http):
        token = await log.journal("orders").append("o", Event("x", tags={"eu"}))
        await replicate(log)
        async with log.projections.run(Projection("seen", source=tag("eu"), handler=handler)):
            await log.projections.wait("seen", token)
        before = await log.projections.offset("seen")
        for body in ({"offset": 5}, {"offset": "5", "type": "text"}, {"offset": str(FAR), "type": "uuid"}):
            answer = await http.put("/projections/seen/eu/offset", json=body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["code"] == "invalid-offset"
        assert await log.projections.offset("seen") == before
