"""How much is measured on a cluster. Every figure here goes into the results file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The sizes of a full run; `quick()` has small ones, which only show that everything runs.

    `rows_per_batch` is what a cycle of the pipeline holds, whatever the size of an append: journals come in
    turns, so that each gets `rows_per_journal` rows of it, and the limit writes batches of as many.
    """

    folder: Path
    seed: int = 1
    quick: bool = False
    keep: bool = False
    payload_bytes: int = 200
    rounds: int = 3
    events: int = 300_000
    keys: int = 5_000
    rows_per_journal: int = 10
    events_per_append: tuple[int, ...] = (10, 1)
    limit_processes: int = 2
    limit_in_flight: int = 128
    single_rows: int = 100_000
    writers: int = 200
    appends_per_writer: int = 200
    raw_appends: int = 100_000
    read_events: int = 1_000
    read_journals: int = 10
    reads_per_round: int = 20
    short_events: int = 250
    short_journals: int = 64
    readers: int = 16
    short_reads: int = 320
    appends_per_second: int = 100
    latency_warm_up_s: float = 60.0
    latency_duration_s: float = 30.0
    latency_journals: int = 100
    queue_jobs: int = 20_000
    queue_concurrency: int = 500
    documents: int = 200
    document_clients: int = 16
    document_single_requests: int = 300
    document_requests: int = 2_000

    @property
    def rows_per_batch(self) -> int:
        return self.keys * self.rows_per_journal

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder), "rows_per_batch": self.rows_per_batch}


def quick(folder: Path, seed: int, keep: bool) -> Settings:
    """A minute or two, most of it the start of the servers and of Spark."""
    return Settings(
        folder=folder,
        seed=seed,
        quick=True,
        keep=keep,
        rounds=1,
        events=15_000,
        keys=500,
        single_rows=5_000,
        appends_per_writer=5,
        raw_appends=5_000,
        reads_per_round=5,
        short_journals=16,
        short_reads=64,
        latency_warm_up_s=3.0,
        latency_duration_s=5.0,
        queue_jobs=2_000,
        documents=20,
        document_single_requests=20,
        document_requests=100,
    )
