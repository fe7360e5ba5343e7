"""Views by tag under load, on real servers."""

from __future__ import annotations

import pytest

from tests.faults.tag_readers import write_and_read

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.case("tags-and-projections", 45)
async def test_many_writers_and_many_readers(cluster_config, pipeline):
    config = cluster_config(partitions=4, segment_size=500, page_size=500)
    with pipeline(config):
        await write_and_read(config)
