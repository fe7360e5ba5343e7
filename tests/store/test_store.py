"""The embedded store keeps what every store promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.store.port import Store
from everlog.store.sqlite.store import SqliteStore
from everlog.testing import StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    async def store(self, tmp_path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path, synchronous="NORMAL")
        yield store
        await store.close()
