"""Retired topics: read, not written, not waited for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

import everlog
from everlog import Event, InvalidInput, JournalNotFound, NotReplicated, TopicRetired
from everlog.api import Everlog
from everlog.core.values import partition_of
from everlog.errors import LogTruncated, StorageFailed, TopicReplaced
from everlog.journal.journal import LOOK_S
from everlog.journal.topic_registry import pin_topic
from everlog.pipeline.planner import OrderPlanner
from everlog.pipeline.start import find_start
from everlog.pipeline.status import PipelineStatus, save_pipeline_status
from everlog.testing.replication import replicate
from tests.cli_support import Cli
from tests.http_support import through_server
from tests.journal.copy_support import cut, empty, make_again, remove, states_of
from tests.support import ManualClock, small_config

Damage = Callable[[Everlog, str], None]


async def fill(log: Everlog) -> None:
    journal = log.journal("orders")
    for number in range(8):
        await journal.append(f"k-{number % 3}", Event(number, tags={"eu"}))
    await journal.delete("k-1", to=1)
    await journal.append("gone", Event("x"), expire_after=timedelta(days=1))
    await journal.purge("gone")
    await replicate(log)


@pytest.mark.parametrize("damage", [make_again, remove, empty])
async def test_a_broken_topic_is_refused_with_the_remedy_until_it_is_retired(tmp_path, clock, damage: Damage) -> None:
    config = small_config(tmp_path / "data")
    async with everlog.connect(config, clock=clock) as log:
        await fill(log)
        originals = await states_of(log, "orders")
        damage(log, "orders")
    async with everlog.connect(config, clock=clock) as log:
        with pytest.raises((TopicReplaced, LogTruncated), match=r"everlog journal copy .*everlog journal retire"):
            [event async for event in log.journal("orders").read("k-1")]
        start = await find_start(log.parts.log, log.parts.store, config, clock, accept_loss=False)
        assert "everlog journal copy" in start.left_out["journal-orders"]
        assert "everlog journal retire" in start.left_out["journal-orders"]
        found = await log.retire("orders")
        assert (found.topic, found.since_ms, found.unreplicated) == ("orders", clock.now_ms(), 0)
        assert sorted(found.gaps) == [0, 1] if damage is not empty else found.gaps
        clock.advance(1)
        assert (await log.retire("orders")).since_ms == found.since_ms
        start = await find_start(log.parts.log, log.parts.store, config, clock, accept_loss=False)
        assert (start.left_out, start.topics, start.offsets) == ({}, {}, {})
    async with everlog.connect(config, clock=clock) as log:
        assert await states_of(log, "orders") == originals
        await check_refusals(log)
        assert await log.topics() == ["orders"]
        assert (await log.parts.log.topic("journal-orders") is None) == (damage is remove)


async def check_refusals(log: Everlog) -> None:
    """Nothing can be written; the error names the remedy."""
    journal = log.journal("orders")
    for writing in (
        lambda: journal.append("k-1", Event("late")),
        lambda: journal.append("k-1", Event("late"), expected=99),
        lambda: journal.append("new", Event("late", seq_nr=1), verdict=False),
        lambda: journal.delete("k-1"),
        lambda: journal.purge("k-1"),
        lambda: journal.mark("k-1"),
        lambda: journal.pointer("k-1", strict=True),
    ):
        with pytest.raises(TopicRetired, match="everlog journal copy orders NEW") as caught:
            await writing()
        assert caught.value.topic == "orders"


async def test_a_sound_topic_is_retired_only_by_force_and_when_all_of_it_is_replicated(small_log) -> None:
    await fill(small_log)
    await small_log.journal("orders").append("k-1", Event("late"))
    with pytest.raises(InvalidInput, match="--force"):
        await small_log.retire("orders")
    with pytest.raises(NotReplicated, match="1 records"):
        await small_log.retire("orders", force=True)
    await replicate(small_log)
    assert (await small_log.retire("orders", force=True)).gaps == {}
    with pytest.raises(JournalNotFound, match="there are: orders"):
        await small_log.retire("odrers")


async def test_those_who_have_it_open_notice(small_log, clock: ManualClock, monkeypatch) -> None:
    """Within seconds, and never at the price of an append: a store that does not answer is asked again later."""
    await fill(small_log)
    originals = await states_of(small_log, "orders")
    async with everlog.connect(small_log.config, clock=clock) as other:
        await other.retire("orders", force=True)
    clock.advance(LOOK_S + 1)
    tables = small_log.parts.store.tags

    async def away(key: str) -> str | None:
        raise StorageFailed("away")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "setting", away)
        await small_log.journal("orders").append("late", Event("acknowledged"))
    clock.advance(LOOK_S + 1)
    await check_refusals(small_log)
    # What was acknowledged meanwhile can still be read: the log is sound.
    assert {**originals, "late": (await states_of(small_log, "orders"))["late"]} == await states_of(small_log, "orders")


async def test_nobody_waits_for_it(small_log, clock) -> None:
    """The pipeline leaves it out, the watermark goes on, expiry does not try to purge, the status shows it apart."""
    journal = small_log.journal("orders")
    await journal.append("a", Event(1, tags={"t"}), expire_after=timedelta(days=1))
    await replicate(small_log)
    await journal.append("a", Event(2, tags={"t"}), expire_after=timedelta(days=1))
    await replicate(small_log, publish=False)  # planned, and then its pipeline died
    make_again(small_log, "orders")
    place = f"journal-orders/{partition_of(b'a', 2)}"
    status = PipelineStatus(
        "running", 1, "host", clock.now_ms(), left_out={"journal-orders": "made again"}, tags_wait_for=[place]
    )
    await save_pipeline_status(small_log.parts.store, status, clock.now_ms())
    assert (await small_log.status()).pipeline.left_out
    planner = OrderPlanner(small_log.parts.store, small_log.config.tags, clock)
    await planner.publish()
    assert planner.holding == [place]
    await small_log.retire("orders")
    planner = OrderPlanner(small_log.parts.store, small_log.config.tags, clock)
    await planner.publish()
    assert (planner.holding, planner.watermark.nr) == ([], 2)
    assert [event.event.payload async for event in small_log.tag("t").current()] == [1, 2]
    start = await find_start(small_log.parts.log, small_log.parts.store, small_log.config, clock, accept_loss=False)
    assert (start.left_out, start.retired, start.found) == ({}, {"journal-orders"}, {})
    found = await small_log.status()
    assert (found.retired, found.partitions, found.lag) == (["orders"], [], 0)
    assert (found.pipeline.left_out, found.pipeline.tags_wait_for) == ({}, [])
    clock.advance(10 * 86_400)
    report = await small_log.expire()
    assert (report.purged, report.failed) == ({}, {})


async def test_of_a_cut_log_what_is_left_is_read(small_log, clock) -> None:
    journal = small_log.journal("orders")
    for number in range(1, 4):
        await journal.append("k", Event(number, seq_nr=number), verdict=False)
    cut(small_log, "orders", 2)
    async with everlog.connect(small_log.config, clock=clock) as log:
        found = await log.retire("orders")
        assert found.gaps[partition_of(b"k", 2)] == "0 to 1 are gone"
        assert found.unreplicated == 1
        assert [event.seq_nr async for event in log.journal("orders").read("k")] == [3]
        assert await log.journal("orders").recent_keys() == {"k"}
        with pytest.raises(TopicRetired):
            await log.journal("orders").append("k", Event(4))
    await pin_topic(small_log.parts.store, await small_log.parts.log.topic("journal-orders"), small_log.config, clock)


def test_the_command(tmp_path) -> None:
    cli = Cli(tmp_path / "data")
    cli.run("journal", "append", "orders", "o-1", "--payload", "x")
    assert cli.error("journal", "retire", "odrers", code=4)["type"] == "JournalNotFound"
    assert cli.error("journal", "retire", "orders", code=2)["type"] == "InvalidInput"
    assert cli.error("journal", "retire", "orders", "--force", code=75)["type"] == "NotReplicated"
    cli.library(replicate)
    assert cli.out("journal", "retire", "orders", "--force").startswith("orders is retired since 2")
    assert cli.json("journal", "retire", "orders")["topic"] == "orders"
    assert cli.out("journal", "read", "orders", "o-1").splitlines()[1].endswith("x")
    assert cli.error("journal", "append", "orders", "o-1", "--payload", "y", code=1)["type"] == "TopicRetired"
    assert "retired   orders" in cli.out("status")
    assert cli.json("status")["retired"] == ["orders"]


async def test_over_http(small_log) -> None:
    """A client of a server gets the same error, and reads on."""
    await fill(small_log)
    await small_log.retire("orders", force=True)
    async with everlog.connect(small_log.config) as local, through_server(local) as remote:
        assert await remote.journal("orders").pointer("k-2") == 2
        for writing in (
            remote.journal("orders").append("k-1", Event("late")),
            remote.journal("orders").delete("k-1"),
            remote.journal("orders").purge("k-1"),
            remote.journal("orders").mark("k-1"),
        ):
            with pytest.raises(TopicRetired, match="everlog journal copy orders NEW"):
                await writing
        assert (await remote.status()).retired == ["orders"]
