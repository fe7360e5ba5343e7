"""Views by tag under load, embedded."""

from __future__ import annotations

import pytest

from tests.faults.tag_readers import write_and_read
from tests.support import small_config

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.case("tags-and-projections", 45)
async def test_many_writers_and_many_readers(tmp_path, pipeline):
    config = small_config(tmp_path / "data", segment_size=500, page_size=500)
    with pipeline(config):
        await write_and_read(config)
