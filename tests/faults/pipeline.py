"""A pipeline in a process of its own, to be killed.

    python -m tests.faults.pipeline CONFIG [worker]

It ends when all that is in the log is replicated. With `worker`, a fail point kills only the process that reaches it.
"""

from __future__ import annotations

import os
import sys

from everlog.runtime.failpoints import ROOT_VARIABLE
from tests.pipeline.backends import read_config


def main(path: str, *, whole: bool) -> None:
    if whole:
        os.environ[ROOT_VARIABLE] = str(os.getpid())
    from everlog.pipeline.replicator import Replicator

    replicator = Replicator(read_config(path))
    replicator.start()
    print("started", flush=True)
    try:
        assert replicator.wait_until_replicated(240), replicator.status
    finally:
        replicator.stop()


if __name__ == "__main__":
    main(sys.argv[1], whole=sys.argv[2:] != ["worker"])
