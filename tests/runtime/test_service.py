"""Work that repeats: it starts, stops, says how it went, and no error of any kind ends it."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from everlog.errors import StorageFailed
from everlog.runtime.service import Service, ServiceStatus
from tests.support import ManualClock


class Kept:
    """A store of statuses that can refuse them."""

    def __init__(self) -> None:
        self.saved: list[ServiceStatus] = []
        self.refuses: Exception | None = None

    async def save_status(self, name: str, status: bytes, now_ms: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.saved.append(msgspec.json.decode(status, type=ServiceStatus))


class Work:
    """Raises what it is told to, then goes well."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def __call__(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "3 purged"


def service(work: Work, kept: Kept) -> Service:
    return Service("upkeep", 0.001, work, clock=ManualClock(), store=kept)


async def test_it_runs_again_and_again_until_it_is_stopped():
    kept = Kept()
    one = service(Work(), kept)
    assert one.status() == ServiceStatus("upkeep")
    one.start()
    one.start()
    await one.ran(3)
    assert one.status().running
    await one.stop()
    await one.stop()
    status = one.status()
    assert (status.running, status.failures, status.last_result) == (False, 0, "3 purged")
    assert status.runs == len(kept.saved) >= 3


@pytest.mark.parametrize("failure", [StorageFailed("the disk is full"), KeyError("life"), AssertionError()])
async def test_no_error_ends_it(failure, caplog):
    one = service(Work(failure), Kept())
    with caplog.at_level(logging.WARNING, "everlog.service"):
        one.start()
        await one.ran(1)
        assert one.status().failures == 1
        assert type(failure).__name__ in str(one.status().last_error) or str(failure) == one.status().last_error
        await one.ran(2)
    await one.stop()
    assert (one.status().failures, one.status().last_error) == (1, None)
    assert "upkeep failed and will be tried again" in caplog.text
    assert ("Traceback" in caplog.text) == (not isinstance(failure, StorageFailed))


@pytest.mark.parametrize("refusal", [StorageFailed("not now"), RuntimeError("closed")])
async def test_a_status_that_cannot_be_saved_does_not_end_it(refusal, caplog):
    kept = Kept()
    kept.refuses = refusal
    one = service(Work(), kept)
    one.start()
    await one.ran(2)
    kept.refuses = None
    await one.ran(one.status().runs + 2)
    await one.stop()
    assert kept.saved
    assert "the status of upkeep was not saved" in caplog.text


async def test_a_stop_that_is_cancelled_lets_the_run_under_way_finish():
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), []

    async def work() -> str:
        begun.set()
        await may_end.wait()
        ended.append(True)
        return "all"

    one = Service("upkeep", 0.001, work, clock=ManualClock(), store=Kept())
    one.start()
    await begun.wait()
    stop = asyncio.create_task(one.stop())
    await asyncio.sleep(0)
    stop.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stop.done()
    may_end.set()
    await asyncio.wait([stop])
    assert stop.cancelled()
    assert ended
