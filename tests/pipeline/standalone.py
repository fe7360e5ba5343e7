"""A Spark master and workers from the PySpark package, as ordinary processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from everlog.runtime.failpoints import ROOT_VARIABLE, VARIABLE
from tests.pipeline.class_archive import SHORT_LIVED

START_SECONDS = 120
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@dataclass
class Standalone:
    """A running master; `workers` are its workers' processes, each with a folder for what runs there."""

    url: str
    workers: list[subprocess.Popen[bytes]]
    folders: list[Path]

    def executors(self, number: int) -> list[Path]:
        """The folders of the executors that ran on a worker."""
        return sorted(self.folders[number].glob("app-*/*"))


@contextmanager
def standalone(folder: Path, fail_points: Sequence[str | None]) -> Iterator[Standalone]:
    """A master with a worker for each entry; one that has a fail point dies there, with all that runs on it."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        processes.append(_start(folder / "master", "org.apache.spark.deploy.master.Master", *address))
        url = _wait_for(folder / "master", processes[0], r"Starting Spark master at (spark://\S+)")
        folders = [folder / f"worker-{number}" for number in range(len(fail_points))]
        for work, fail_point in zip(folders, fail_points, strict=True):
            options = [*address, "--cores", "1", "--memory", "1g", "--work-dir", str(work), url]
            processes.append(_start(work, "org.apache.spark.deploy.worker.Worker", *options, fail_point=fail_point))
        for work, process in zip(folders, processes[1:], strict=True):
            _wait_for(work, process, r"Successfully registered with master")
        yield Standalone(url, processes[1:], folders)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(folder: Path, name: str, *arguments: str, fail_point: str | None = None) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True)
    options = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
    environment = {**os.environ, **options}
    environment.pop(VARIABLE, None)
    if fail_point is not None:
        environment[VARIABLE] = fail_point
    # The shell becomes the JVM, so that this number is also that of the process to die.
    command = f'export {ROOT_VARIABLE}=$$; exec "$@"'
    with (folder / "out").open("wb") as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", command, "sh", str(SPARK_CLASS), name, *arguments],
            env=environment,
            stdout=output,
            stderr=output,
        )


def _wait_for(folder: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    """What a process says when it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        text = (folder / "out").read_text()
        found = re.search(pattern, text)
        if found:
            return found[1] if found.groups() else found[0]
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
