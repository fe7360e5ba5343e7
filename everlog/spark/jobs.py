"""Plain jobs on Spark: a function of ours for each of a few tasks, in a job group and a pool of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

TaskBody = Callable[[int, Iterable[Any]], Iterable[Any]]
"""Gets the number of the task. It must read the iterator, which is empty, to its end: else Spark ends the process."""


class SparkJobs:
    """Runs jobs, from any thread; `cancel` ends all of them."""

    def __init__(self, context: SparkContext, name: str) -> None:
        self._context = context
        self._name = name
        self._thread = threading.local()
        # What says how many tasks a job has is made once for each number.
        self._slots: dict[int, RDD[Any]] = {}

    def run(self, body: TaskBody, tasks: int) -> list[Any]:
        """What all tasks yield, in their order."""
        if not hasattr(self._thread, "grouped"):  # Spark remembers it for this thread
            self._context.setJobGroup(self._name, self._name)
            self._context.setLocalProperty("spark.scheduler.pool", self._name)
            self._thread.grouped = True
        slots = self._slots.get(tasks)
        if slots is None:
            slots = self._slots[tasks] = self._context.parallelize([], tasks)
        found: list[Any] = slots.mapPartitionsWithIndex(body).collect()
        return found

    def cancel(self) -> None:
        """End the jobs under way: their tasks are killed, wherever they are."""
        with suppress(Exception):  # Spark is gone, and the job with it
            self._context.cancelJobGroup(self._name)

    @property
    def alive(self) -> bool:
        """Whether Spark can run jobs at all."""
        try:
            stopped: bool = self._context._jsc.sc().isStopped()
        except Exception:
            return False
        return not stopped


# The last line of a traceback of Python's: the error, and what it says.
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Failed|Exit|Interrupt): (.+)$", re.MULTILINE)


def explain(error: BaseException | None) -> str:
    """What went wrong, of an error of ours or of Spark's, which quotes what was raised in a task.

    >>> explain(RuntimeError("Traceback (most recent call last):\\n  File …\\nValueError: no such file\\n\\tat java.…"))
    'no such file'
    """
    if error is None:
        return "it ended by itself"
    said = str(error)
    _, traced, raised = said.partition("Traceback (most recent call last):")
    found = _RAISED.search(raised) if traced else None
    if found is not None:
        return found[1].strip()
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line for line in lines if "most recent failure:" in line or line.startswith(("Caused by:", ": "))]
    return (reasons or lines or [repr(error)])[0].removeprefix(": ")
