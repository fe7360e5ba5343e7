"""A view is compared with a recount: damage of any kind is found, and an intact one is found intact."""

from __future__ import annotations

import pytest

from everlog import Event
from everlog.errors import InvalidProjection, StorageFailed, UnknownProjection
from everlog.projections.projection import Projection
from everlog.projections.record_source import records
from everlog.projections.strategies import exactly_once
from tests.projections.test_record_source import collect, count_words, fill, make_counts


def counting(**settings) -> Projection:
    source = records("orders", **settings)
    return Projection("counts", source=source, handler=count_words, strategy=exactly_once())


async def caught_up(log, projection) -> None:
    await make_counts(log)
    await fill(log, events=30)
    async with log.projections.run(projection):
        for key in range(5):
            token = await log.journal("orders").append(f"o-{key}", Event("last"))
            await log.projections.wait("counts", token)


@pytest.mark.parametrize("split", [1, 2])
async def test_an_intact_view_is_as_counted_again(small_log, split):
    """Also while new events wait that the view does not have yet, and while the projection is running."""
    await caught_up(small_log, counting(split=split))
    await small_log.journal("orders").append("o-1", Event("not handled yet"))
    (found,) = await small_log.projections.verify(counting(split=split), "counts")
    assert (found.table, found.rows, found.missing, found.surplus, found.equal) == ("counts", 5, 0, 0, True)
    async with small_log.projections.run(counting(split=split)):
        (found,) = await small_log.projections.verify(counting(split=split), "counts")
        assert found.equal


@pytest.mark.parametrize(
    ("damage", "missing", "surplus"),
    [
        ("UPDATE counts SET n = n + 1 WHERE key = 'o-1'", 1, 1),
        ("DELETE FROM counts WHERE key = 'o-1'", 1, 0),
        ("INSERT INTO counts VALUES ('o-9', 1)", 0, 1),
    ],
)
async def test_damage_is_found(small_log, damage, missing, surplus):
    await caught_up(small_log, counting())
    await small_log.projections.view("counts").execute(damage)
    (found,) = await small_log.projections.verify(counting(), "counts")
    assert (found.missing, found.surplus, found.equal) == (missing, surplus, False)
    rows = await small_log.projections.view("counts").fetch("SELECT count(*) FROM counts")
    assert rows == [(found.rows,)], "the view itself is not touched"


async def test_what_cannot_be_compared_is_named(small_log):
    with pytest.raises(UnknownProjection):
        await small_log.projections.verify(counting(), "counts")
    await caught_up(small_log, counting())
    with pytest.raises(InvalidProjection, match="no table"):
        await small_log.projections.verify(counting(), "others")

    async def broken(record, view) -> None:
        raise ValueError("a bug")

    bad = Projection("counts", source=records("orders"), handler=broken, strategy=exactly_once())
    with pytest.raises(StorageFailed, match="a bug"):
        await small_log.projections.verify(bad, "counts")
    seen = collect([])
    async with small_log.projections.run(seen) as runner:
        await runner.owns("seen", 1)
    with pytest.raises(InvalidProjection, match="does not fill tables"):
        await small_log.projections.verify(seen, "counts")
