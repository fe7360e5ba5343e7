"""Servers of a test's own, which end with the run, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everlog.cluster.cassandra import find_cassandra_java
from everlog.cluster.jars import find_jars
from everlog.cluster.kafka import find_kafka_java
from everlog.cluster.local import LocalCluster
from everlog.errors import DownloadFailed, MissingProgram

# Its input ends when this process does, by whatever signal: then it stops the servers.
_GUARD = """
import sys
from pathlib import Path
from everlog.cluster.local import LocalCluster
sys.stdin.read()
LocalCluster(Path(sys.argv[1])).down()
"""


@contextmanager
def guarded(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, not started yet; it is stopped at the end, and also when this process is killed."""
    guard = subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(cluster.folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield cluster
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(120)


@contextmanager
def running(folder: Path, *, nodes: int = 1, secure: bool = False) -> Iterator[LocalCluster]:
    """A cluster that serves."""
    require_servers()
    with guarded(LocalCluster(folder, nodes=nodes, secure=secure)) as cluster:
        cluster.up()
        yield cluster


def require_servers() -> None:
    """Where the servers are not to be had, the test is skipped; in the CI it fails."""
    try:
        find_kafka_java()
        find_cassandra_java()
        for profile in ("kafka", "cassandra"):
            find_jars(profile)
    except (MissingProgram, DownloadFailed) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"NO CLUSTER: {error}")
