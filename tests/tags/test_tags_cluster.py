"""Views by tag on Kafka and Cassandra keep what every view promises."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from everlog.api import Everlog
from everlog.cassandra.session import connect as session_to
from everlog.client import connect
from everlog.config import Config
from everlog.testing import TagConformance
from tests.fixtures.cluster import MakeConfig
from tests.support import ManualClock

pytestmark = pytest.mark.cluster

# A broker takes no record from the future, and tests go through months.
AGO_MS = 300 * 86_400_000


TABLES = ("tag_plan", "tag_watermark", "tag_buckets", "tag_views", "tag_write_progress")


@pytest.fixture(scope="module")
def keyspace() -> str:
    """One for all tests: making the tables takes longer than a test. Each has topics of its own, and empty views."""
    return f"v{secrets.token_hex(5)}"


async def empty(config: Config) -> None:
    """Take everything out of the views. There is one order for all topics of a keyspace, whoever they belong to."""
    assert config.cassandra is not None
    session = await session_to(config.cassandra)
    try:
        for table in TABLES:
            await session.change_schema(f"TRUNCATE {config.cassandra.keyspace}.{table}")
    finally:
        await session.close()


class TestClusterTags(TagConformance):
    @pytest.fixture
    async def everlog(self, shared_config: MakeConfig, keyspace: str) -> AsyncIterator[Everlog]:
        clock = ManualClock(time.time_ns() // 1_000_000 - AGO_MS)
        config = shared_config()
        assert config.cassandra is not None
        cassandra = msgspec.structs.replace(config.cassandra, keyspace=keyspace)
        config = msgspec.structs.replace(config, cassandra=cassandra)
        async with connect(config, clock=clock) as everlog:
            yield everlog
        await empty(config)

    test_one_row_per_tag = pytest.mark.case("tags-and-projections", 6)(TagConformance.test_one_row_per_tag)
    test_numbers_count_the_tagged_events = pytest.mark.case("tags-and-projections", 7)(
        TagConformance.test_numbers_count_the_tagged_events
    )
    test_a_crash_after_every_batch = pytest.mark.case("tags-and-projections", 18, 20)(
        TagConformance.test_a_crash_after_every_batch
    )
    test_a_replay_changes_nothing = pytest.mark.case("tags-and-projections", 14)(
        TagConformance.test_a_replay_changes_nothing
    )
    test_two_pipelines_at_once = pytest.mark.case("tags-and-projections", 10, 21)(
        TagConformance.test_two_pipelines_at_once
    )
    test_an_empty_view = pytest.mark.case("tags-and-projections", 11, 25)(TagConformance.test_an_empty_view)
    test_a_current_read_ends_where_it_began = pytest.mark.case("tags-and-projections", 27)(
        TagConformance.test_a_current_read_ends_where_it_began
    )
    test_a_slow_consumer_holds_one_page = pytest.mark.case("tags-and-projections", 28)(
        TagConformance.test_a_slow_consumer_holds_one_page
    )
    test_buckets_with_nothing_between = pytest.mark.case("tags-and-projections", 29)(
        TagConformance.test_buckets_with_nothing_between
    )
    test_every_offset_is_a_place_to_go_on = pytest.mark.case("tags-and-projections", 30)(
        TagConformance.test_every_offset_is_a_place_to_go_on
    )
    test_a_short_failure_of_the_store = pytest.mark.case("tags-and-projections", 44)(
        TagConformance.test_a_short_failure_of_the_store
    )
    test_many_writers_and_many_readers = pytest.mark.case("tags-and-projections", 45)(
        TagConformance.test_many_writers_and_many_readers
    )
    test_deletes_leave_the_view_alone = pytest.mark.case("tags-and-projections", 46)(
        TagConformance.test_deletes_leave_the_view_alone
    )
    test_the_events_of_one_journal = pytest.mark.case("tags-and-projections", 50)(
        TagConformance.test_the_events_of_one_journal
    )
    test_a_gap_in_a_journal = pytest.mark.case("tags-and-projections", 49)(TagConformance.test_a_gap_in_a_journal)
    test_all_ids = pytest.mark.case("tags-and-projections", 51)(TagConformance.test_all_ids)
    test_a_view_that_is_lost = pytest.mark.case("tags-and-projections", 15, 16)(TagConformance.test_a_view_that_is_lost)
    test_drop_and_rebuild = pytest.mark.case("tags-and-projections", 47)(TagConformance.test_drop_and_rebuild)
