"""What tests of journals share: a small log, and the same through a server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from tests.support import small_config


@pytest.fixture
async def log(tmp_path, clock) -> AsyncIterator[Everlog]:
    async with connect(small_config(tmp_path / "data"), clock=clock) as log:
        yield log


@pytest.fixture(params=["here", "over HTTP"])
async def either(request, log: Everlog) -> AsyncIterator[Everlog]:
    if request.param == "here":
        yield log
        return
    async with serving(log, host="127.0.0.1", port=0) as address, connect(address) as remote:
        yield remote
