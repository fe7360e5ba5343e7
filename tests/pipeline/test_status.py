"""The status: lag is measured live, the pipeline's own word is kept in the store."""

from __future__ import annotations

import msgspec
import pytest

from everlog.core.events import Event
from everlog.pipeline.status import PipelineStatus, Status, caught_up, save_pipeline_status
from everlog.testing import replicate


async def test_an_empty_folder_has_a_status(small_log):
    status = await small_log.status()
    assert (status.partitions, status.pipeline, status.lag, status.lag_seconds) == ([], None, 0, 0.0)
    assert caught_up(status)


async def test_lag_is_counted_in_records_and_seconds(small_log, clock):
    """Per partition: records above the pointer, and the age of the oldest of them."""
    journal = small_log.journal("orders")
    partition = (await journal.append("k", Event(1))).partition
    clock.advance(10)
    await journal.append("k", Event(2))
    clock.advance(5)
    status = await small_log.status()
    assert not caught_up(status)
    assert (status.lag, status.lag_seconds, status.topics) == (2, 15.0, ["orders"])
    found = {p.partition: (p.topic, p.start, p.end, p.pointer, p.lag, p.lag_seconds) for p in status.partitions}
    assert found == {partition: ("orders", 0, 2, -1, 2, 15.0), 1 - partition: ("orders", 0, 0, -1, 0, 0.0)}
    await replicate(small_log, batch=1, batches=1)
    status = await small_log.status()
    assert (status.lag, status.lag_seconds) == (1, 5.0)
    await replicate(small_log)
    status = await small_log.status()
    assert caught_up(status)
    assert (status.lag, status.lag_seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("state", "silent", "shown"),
    [
        ("running", 29, "running"),
        ("running", 31, "lost"),
        ("starting", 31, "lost"),
        ("retrying", 31, "retrying"),
        ("retrying", 61, "lost"),
        ("stopped", 1000, "stopped"),
    ],
)
async def test_a_silent_pipeline_is_lost(small_log, clock, state, silent, shown):
    """A pipeline that says it works writes at least every 30 s, longer only between two tries."""
    status = PipelineStatus(state, 1, "host", clock.now_ms(), left_out={"t": "why"}, last_error="e")
    await save_pipeline_status(small_log.parts.store, status, clock.now_ms())
    clock.advance(silent)
    found = (await small_log.status()).pipeline
    assert found == msgspec.structs.replace(status, state=shown, updated_ms=clock.now_ms() - silent * 1000)


async def test_a_status_is_plain_json(small_log, clock):
    await small_log.journal("t").append("k", Event(1))
    await save_pipeline_status(small_log.parts.store, PipelineStatus("running", 1, "h", 0), clock.now_ms())
    await small_log.parts.store.save_status("other", b'{"a":1}', 1)
    status = await small_log.status()
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status
    assert status.services == {"other": {"a": 1}}


async def test_a_status_of_another_version_is_ignored(small_log):
    await small_log.parts.store.save_status("pipeline", b'{"state":"flying"}', 1)
    assert (await small_log.status()).pipeline is None
