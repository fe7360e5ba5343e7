"""Views by tag in the embedded store keep what every view promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.client import Everlog, connect
from everlog.testing import TagConformance
from tests.support import small_config

case = pytest.mark.case
SPEC = "tags-and-projections"


class TestEmbeddedTags(TagConformance):
    @pytest.fixture
    async def everlog(self, tmp_path, clock) -> AsyncIterator[Everlog]:
        async with connect(small_config(tmp_path / "data"), clock=clock) as everlog:
            yield everlog

    test_one_row_per_tag = case(SPEC, 6)(TagConformance.test_one_row_per_tag)
    test_numbers_count_the_tagged_events = case(SPEC, 7)(TagConformance.test_numbers_count_the_tagged_events)
    test_a_crash_after_every_batch = case(SPEC, 18, 20, 22, 23)(TagConformance.test_a_crash_after_every_batch)
    test_a_replay_changes_nothing = case(SPEC, 14)(TagConformance.test_a_replay_changes_nothing)
    test_two_pipelines_at_once = case(SPEC, 21)(TagConformance.test_two_pipelines_at_once)
    test_an_empty_view = case(SPEC, 25)(TagConformance.test_an_empty_view)
    test_a_current_read_ends_where_it_began = case(SPEC, 27)(TagConformance.test_a_current_read_ends_where_it_began)
    test_a_slow_consumer_holds_one_page = case(SPEC, 28)(TagConformance.test_a_slow_consumer_holds_one_page)
    test_buckets_with_nothing_between = case(SPEC, 29)(TagConformance.test_buckets_with_nothing_between)
    test_every_offset_is_a_place_to_go_on = case(SPEC, 30)(TagConformance.test_every_offset_is_a_place_to_go_on)
    test_a_short_failure_of_the_store = case(SPEC, 44)(TagConformance.test_a_short_failure_of_the_store)
    test_many_writers_and_many_readers = case(SPEC, 45)(TagConformance.test_many_writers_and_many_readers)
    test_deletes_leave_the_view_alone = case(SPEC, 46)(TagConformance.test_deletes_leave_the_view_alone)
    test_the_events_of_one_journal = case(SPEC, 50)(TagConformance.test_the_events_of_one_journal)
    test_a_gap_in_a_journal = case(SPEC, 49)(TagConformance.test_a_gap_in_a_journal)
    test_all_ids = case(SPEC, 51)(TagConformance.test_all_ids)
    test_a_view_that_is_lost = case(SPEC, 15, 16)(TagConformance.test_a_view_that_is_lost)
    test_drop_and_rebuild = case(SPEC, 47)(TagConformance.test_drop_and_rebuild)
