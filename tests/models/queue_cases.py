"""The acceptance cases that the suite for stores of queues shows, by the names of its tests."""

from __future__ import annotations

import pytest

from everlog.testing import QueueConformance


class QueueCases(QueueConformance):
    """The suite, with the numbers of its cases."""

    test_a_new_key_makes_a_row = pytest.mark.case("journal-tables", 1)(QueueConformance.test_a_new_key_makes_a_row)
    test_an_arrival_merges_into_the_waiting_row = pytest.mark.case("journal-tables", 2)(
        QueueConformance.test_an_arrival_merges_into_the_waiting_row
    )
    test_never_beats_every_expiration = pytest.mark.case("journal-tables", 3)(
        QueueConformance.test_never_beats_every_expiration
    )
    test_a_merge_forgives_failures_but_not_a_lifetime = pytest.mark.case("journal-tables", 4)(
        QueueConformance.test_a_merge_forgives_failures_but_not_a_lifetime
    )
    test_packets_in_any_order_give_the_same_row = pytest.mark.case("journal-tables", 6)(
        QueueConformance.test_packets_in_any_order_give_the_same_row
    )
    test_max_wait_ends_a_burst = pytest.mark.case("journal-tables", 7)(QueueConformance.test_max_wait_ends_a_burst)
    test_dates_that_cannot_be = pytest.mark.case("journal-tables", 8)(QueueConformance.test_dates_that_cannot_be)
    test_keys_with_the_same_hash_are_two_jobs = pytest.mark.case("journal-tables", 9)(
        QueueConformance.test_keys_with_the_same_hash_are_two_jobs
    )
    test_without_merging_every_arrival_is_a_job = pytest.mark.case("journal-tables", 10)(
        QueueConformance.test_without_merging_every_arrival_is_a_job
    )
    test_an_arrival_for_a_running_key_waits_behind_it = pytest.mark.case("journal-tables", 12)(
        QueueConformance.test_an_arrival_for_a_running_key_waits_behind_it
    )
    test_many_arrivals_for_a_running_key_are_one_run = pytest.mark.case("journal-tables", 13)(
        QueueConformance.test_many_arrivals_for_a_running_key_are_one_run
    )
    test_a_timed_out_run_merges_with_its_successor = pytest.mark.case("journal-tables", 14)(
        QueueConformance.test_a_timed_out_run_merges_with_its_successor
    )
    test_a_killed_run_leaves_its_successor = pytest.mark.case("journal-tables", 15)(
        QueueConformance.test_a_killed_run_leaves_its_successor
    )
    test_only_parallel_gives_a_second_lease_on_a_key = pytest.mark.case("journal-tables", 16)(
        QueueConformance.test_only_parallel_gives_a_second_lease_on_a_key
    )
    test_the_order_of_claims = pytest.mark.case("journal-tables", 18)(QueueConformance.test_the_order_of_claims)
    test_a_delayed_job_does_not_hold_up_others = pytest.mark.case("journal-tables", 19)(
        QueueConformance.test_a_delayed_job_does_not_hold_up_others
    )
    test_slow_jobs_wait_for_a_pass_without_others = pytest.mark.case("journal-tables", 21)(
        QueueConformance.test_slow_jobs_wait_for_a_pass_without_others
    )
    test_a_lease_ends_strictly_after_its_last_moment = pytest.mark.case("journal-tables", 22)(
        QueueConformance.test_a_lease_ends_strictly_after_its_last_moment
    )
    test_heartbeats_keep_a_lease = pytest.mark.case("journal-tables", 23)(QueueConformance.test_heartbeats_keep_a_lease)
    test_an_old_handle_changes_nothing = pytest.mark.case("journal-tables", 24)(
        QueueConformance.test_an_old_handle_changes_nothing
    )
    test_late_is_better_than_again = pytest.mark.case("journal-tables", 26)(
        QueueConformance.test_late_is_better_than_again
    )
    test_five_dead_attempts_make_a_dead_letter = pytest.mark.case("journal-tables", 28)(
        QueueConformance.test_five_dead_attempts_make_a_dead_letter
    )
    test_the_counter_never_wraps = pytest.mark.case("journal-tables", 28)(QueueConformance.test_the_counter_never_wraps)
    test_a_released_job_waits_again_and_nothing_is_counted = pytest.mark.case("journal-tables", 29)(
        QueueConformance.test_a_released_job_waits_again_and_nothing_is_counted
    )
    test_a_cancelled_job_is_gone_or_told_to_stop = pytest.mark.case("journal-tables", 29)(
        QueueConformance.test_a_cancelled_job_is_gone_or_told_to_stop
    )
    test_what_has_expired_is_not_there = pytest.mark.case("journal-tables", 31)(
        QueueConformance.test_what_has_expired_is_not_there
    )
    test_an_arrival_for_an_expired_key_begins_anew = pytest.mark.case("journal-tables", 32)(
        QueueConformance.test_an_arrival_for_an_expired_key_begins_anew
    )
    test_a_job_that_expires_while_it_runs = pytest.mark.case("journal-tables", 33)(
        QueueConformance.test_a_job_that_expires_while_it_runs
    )
    test_the_next_moment_to_look = pytest.mark.case("journal-tables", 35, 36)(
        QueueConformance.test_the_next_moment_to_look
    )
    test_queues_in_one_table_do_not_meet = pytest.mark.case("journal-tables", 43)(
        QueueConformance.test_queues_in_one_table_do_not_meet
    )
    test_columns_change_by_versions = pytest.mark.case("journal-tables", 42)(
        QueueConformance.test_columns_change_by_versions
    )
