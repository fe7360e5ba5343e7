"""The Spark session: settings that make small local batches quick and quiet."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everlog.config import Config
from everlog.errors import MissingExtra, ReplicationFailed

try:
    from pyspark.sql import SparkSession
except ImportError as error:  # pragma: no cover - needs an installation without the extra
    raise MissingExtra("spark") from error

_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.speculation": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # Small Arrow batches cost the JVM less than half per record than the default of 10,000.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # The JVM only moves blocks of bytes: a plain collector and a light compiler start sooner and cost less.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # No forked helpers for every checkpoint file: about 100 ms less per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def open_session(config: Config, *, output: Path | None = None) -> SparkSession:
    """A session as `[spark]` says; the settings there win over ours.

    `output` is where Spark's own words go, so that ours stay readable.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("everlog").master(config.spark.master)
    settings = _LOCAL | {"spark.driver.memory": config.spark.memory} | config.spark.conf
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _stderr_in(output), _own_interrupts():
            return builder.getOrCreate()
    except Exception as error:
        raise ReplicationFailed(
            f"Spark did not start ({error}): it needs a JDK 17 or 21 on the PATH or in JAVA_HOME"
            + (f"; its output is in {output}" if output else "")
        ) from error


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Spark takes over Ctrl-C in the main thread: give it back, whoever starts a pipeline also stops it."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _stderr_in(path: Path | None) -> Iterator[None]:
    """While this lasts, standard error goes to a file; a child that starts meanwhile keeps it there."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
