"""Plain jobs on a real Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from everlog.spark.jobs import SparkJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def number(task: int, empty: Iterable[object]) -> list[int]:
    assert list(empty) == []
    return [task, 10 * task]


def sleep(task: int, empty: Iterable[object]) -> list[int]:
    list(empty)
    time.sleep(600)
    return []


def test_every_task_has_its_number(spark: Any) -> None:
    jobs = SparkJobs(spark.sparkContext, "numbers")
    for tasks in (1, 3, 1):
        assert jobs.run(number, tasks) == [found for task in range(tasks) for found in (task, 10 * task)]
    assert jobs.alive


def test_a_job_is_cancelled_whichever_thread_runs_it(spark: Any) -> None:
    """Group and pool belong to a thread: one that ran a job before must not be the only one that has them."""
    jobs, raised = SparkJobs(spark.sparkContext, "sleepers"), []
    warm = threading.Thread(target=jobs.run, args=(number, 1))
    warm.start()
    warm.join()

    def run() -> None:
        try:
            jobs.run(sleep, 1)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    tracker, deadline = spark.sparkContext.statusTracker(), time.monotonic() + 60
    while not any(
        (info := tracker.getJobInfo(job)) and info.status == "RUNNING" for job in tracker.getJobIdsForGroup("sleepers")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    jobs.cancel()
    thread.join(60)
    assert not thread.is_alive()
    assert "cancelled" in str(raised[0])
    assert jobs.run(number, 1) == [0, 0]
