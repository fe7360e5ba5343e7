"""The stores of queues keep what every store promises."""

from __future__ import annotations

import pytest

from everlog.queues.memory import MemoryQueueStore
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from tests.models.queue_cases import QueueCases


class TestMemoryStore(QueueCases):
    @pytest.fixture
    def make_store(self):
        async def make(clock, *, sweep=500):
            return MemoryQueueStore(clock, sweep=sweep)

        return make


class TestSqliteStore(QueueCases):
    @pytest.fixture
    def make_store(self, tmp_path):
        async def make(clock, *, sweep=500):
            return SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock, sweep=sweep)

        return make
