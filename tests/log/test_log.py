"""The embedded log keeps what every log promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.log.port import Log
from everlog.log.sqlite.log import SqliteLog
from everlog.testing import LogConformance


class TestSqliteLog(LogConformance):
    @pytest.fixture
    async def log(self, tmp_path) -> AsyncIterator[Log]:
        log = SqliteLog(tmp_path, partitions=2, synchronous="NORMAL")
        yield log
        await log.close()
