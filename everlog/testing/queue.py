"""What every store of queues must do, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from everlog.queues.port import QueueStore
from everlog.testing.queue_desk import VirtualClock, VirtualQueue
from everlog.testing.queue_groups import QueueGroupSuite
from everlog.testing.queue_history import QueueHistorySuite
from everlog.testing.queue_leases import QueueLeaseSuite
from everlog.testing.queue_lookup import QueueLookupSuite
from everlog.testing.queue_merges import QueueMergeSuite
from everlog.testing.queue_removal import QueueRemovalSuite
from everlog.testing.queue_retention import QueueRetentionSuite
from everlog.testing.queue_schedules import QueueScheduleSuite
from everlog.testing.queue_upkeep import QueueUpkeepSuite


class QueueConformance(
    QueueMergeSuite,
    QueueLeaseSuite,
    QueueRetentionSuite,
    QueueUpkeepSuite,
    QueueHistorySuite,
    QueueScheduleSuite,
    QueueLookupSuite,
    QueueRemovalSuite,
    QueueGroupSuite,
):
    """Subclass it and provide the fixture `make_store`: a function from a clock to an open, empty store.

    It takes `sweep`, how many rows a claim turns over first, and passes it to the engine. A store that other tests have
    used may be given, too, if the fixture `queue_name` gives every test a name of its own.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    async def store(self, make_store: Callable[..., Any], clock: VirtualClock) -> AsyncIterator[QueueStore]:
        store = await make_store(clock)
        yield store
        await store.close()

    @pytest.fixture
    def queue_name(self) -> str:
        return "jobs"

    @pytest.fixture
    async def desk(self, store: QueueStore, clock: VirtualClock, queue_name: str) -> VirtualQueue:
        desk = VirtualQueue(store, clock, queue_name)
        await desk.declare()
        return desk
