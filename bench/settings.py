"""How much is measured, and where. Every figure here goes into the results file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The sizes of a full run; `quick()` has small ones, which only show that everything runs."""

    folder: Path
    seed: int = 1
    quick: bool = False
    payload_bytes: int = 200
    rounds: int = 5
    single_journals: int = 100
    single_appends: int = 2_000
    writers: int = 200
    appends_per_writer: int = 50
    peer_concurrent_appends: int = 2_000
    peer_threads: tuple[int, ...] = (1, 8, 16, 64)
    replay_events: int = 20_000
    pipeline_events: int = 500_000
    pipeline_keys: int = 5_000
    pipeline_warm_up_events: int = 50_000
    big: bool = True
    big_events: int = 5_000_000
    tags_events: int = 200_000
    latency_samples: int = 100
    latency_warm_up_samples: int = 10
    projection_events: int = 50_000
    projection_few_events: int = 5_000
    projection_peer_events: int = 10_000
    projection_waits: int = 200
    queue_single_jobs: int = 300
    queue_jobs: int = 20_000
    queue_slow_jobs: int = 1_000
    queue_redis_jobs: int = 10_000
    queue_drain_s: float = 1.0
    queue_delayed: int = 1_000_000
    queue_claims: int = 200
    queue_wakes: int = 300
    documents: int = 1_000
    document_clients: int = 16
    document_single_requests: int = 500
    document_requests: int = 4_000
    document_few_elements: int = 10_000
    document_many_elements: int = 1_000_000
    document_pages: int = 300
    http_load_s: int = 4

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


def quick(folder: Path, seed: int) -> Settings:
    """A minute or two, most of it Spark's start."""
    return Settings(
        folder=folder,
        seed=seed,
        quick=True,
        rounds=2,
        single_appends=200,
        appends_per_writer=5,
        peer_concurrent_appends=200,
        peer_threads=(1, 8),
        replay_events=2_000,
        pipeline_events=20_000,
        pipeline_keys=500,
        pipeline_warm_up_events=5_000,
        big=False,
        big_events=60_000,
        tags_events=20_000,
        latency_samples=10,
        latency_warm_up_samples=3,
        projection_events=2_000,
        projection_few_events=200,
        projection_peer_events=200,
        projection_waits=10,
        queue_single_jobs=50,
        queue_drain_s=0.1,
        queue_jobs=1_000,
        queue_slow_jobs=50,
        queue_redis_jobs=500,
        queue_delayed=10_000,
        queue_claims=20,
        queue_wakes=20,
        documents=50,
        document_single_requests=50,
        document_requests=200,
        document_few_elements=1_000,
        document_many_elements=10_000,
        document_pages=20,
        http_load_s=1,
    )
