"""Servers of the command line let their threads take turns quickly, and only they."""

from __future__ import annotations

import sys

import pytest

from everlog.cli.run import ServerOptions
from everlog.client import connect
from everlog.runtime.thread_switches import INTERVAL_S
from tests.support import small_config


async def test_a_server_of_the_command_line_switches_quickly(tmp_path):
    before = sys.getswitchinterval()
    async with connect(small_config(tmp_path)) as log, ServerOptions(port=0).serving(log):
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(before)
