"""Servers of the command line change their process, and only they, as long as they run."""

from __future__ import annotations

import gc
import sys

import pytest

from everlog.cli.run import ServerOptions
from everlog.client import connect
from everlog.runtime.server_process import SWITCH_INTERVAL_S
from tests.support import small_config


async def test_a_server_of_the_command_line_changes_its_process(tmp_path):
    before = sys.getswitchinterval()
    async with connect(small_config(tmp_path)) as log, ServerOptions(port=0).serving(log):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        assert gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == pytest.approx(before)
    assert gc.get_freeze_count() == 0
