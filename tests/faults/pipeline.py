"""A pipeline in a process of its own, to be killed: python -m tests.faults.pipeline FOLDER [MAX_BATCH_RECORDS]."""

from __future__ import annotations

import os
import sys

import msgspec

from everlog.config import load_config
from everlog.failpoints import ROOT_VARIABLE


def main(folder: str, batch: int) -> None:
    os.environ[ROOT_VARIABLE] = str(os.getpid())
    from everlog.pipeline.replicate import Replicator

    config = load_config(folder)
    pipeline = msgspec.structs.replace(config.pipeline, max_batch_records=batch)
    replicator = Replicator(msgspec.structs.replace(config, pipeline=pipeline))
    replicator.start()
    print("started", flush=True)
    try:
        assert replicator.wait_until_replicated(120)
    finally:
        replicator.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
