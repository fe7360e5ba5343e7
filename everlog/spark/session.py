"""The Spark session: settings that make small local batches quick and quiet."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everlog.config import Config
from everlog.config.private import FILE_MODE
from everlog.errors import MissingExtra, MissingProgram, ReplicationFailed

try:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession
except ImportError as error:  # pragma: no cover - needs an installation without the extra
    raise MissingExtra("spark") from error

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # A second copy of a task would do its writes again, for nothing.
    "spark.speculation": "false",
    # Jobs of the pipeline and of projections share the session: none waits until all tasks of another are done.
    "spark.scheduler.mode": "FAIR",
    # Over TCP every hand-over to a worker may wait 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # The workers keep their connections, and what they know, from batch to batch.
    "spark.python.worker.reuse": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # Small Arrow batches cost the JVM less than half per record than the default of 10,000.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # A checkpoint here is thrown away with its query: no checksums, and no forked helpers (about 100 ms per batch).
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # What a heavy projection groups: the default of 200 tasks would cost a small batch seconds.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
# The JVM only starts tasks: a plain collector and a light compiler start sooner and cost less.
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def open_session(config: Config, *, output: Path | None = None) -> SparkSession:
    """A session as `[spark]` says; the settings there win over ours.

    `output` is where Spark's own messages go, so that ours stay readable.
    """
    return make_session(open_context(config, output=output))


def open_context(config: Config, *, output: Path | None = None, daemon: str | None = None) -> SparkContext:
    """The part of a session that runs plain jobs: it starts sooner. `daemon`: the module of the process that workers of
    Python are forked from, which may import what their tasks need, once for all of them."""
    settings = session_settings(config) | ({} if daemon is None else {"spark.python.daemon.module": daemon})
    conf = SparkConf().setAppName("everlog").setMaster(config.spark.master)
    conf.setAll([*settings.items(), *config.spark.conf.items()])
    _check_java()
    _set_environment(local=is_local(config))
    try:
        with _own_interrupts():
            _launch(conf, output)
            return SparkContext.getOrCreate(conf)
    except Exception as error:
        raise ReplicationFailed(
            f"Spark did not start ({error}): it needs a JDK 17 or 21 on the PATH or in JAVA_HOME"
            + (f"; its output is in {output}" if output else "")
        ) from error


def _check_java() -> None:
    """Without Java, Spark itself would only say that a program ended."""
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").is_file() if home else shutil.which("java")):
        where = f"there is none in JAVA_HOME ({home})" if home else "there is none on the PATH, and no JAVA_HOME"
        raise MissingProgram(
            f"Spark needs Java 17 or 21, and {where}: install it (openjdk-17-jre-headless), or set JAVA_HOME"
        )


def make_session(context: SparkContext) -> SparkSession:
    """The session of a context, for queries and DataFrames."""
    return SparkSession(context)


def session_settings(config: Config) -> dict[str, str]:
    """What we set, by the master."""
    settings = _SETTINGS | {"spark.driver.memory": config.spark.memory}
    settings["spark.driver.extraJavaOptions"] = _JVM
    if is_local(config):
        settings |= _LOCAL
    return settings


def is_local(config: Config) -> bool:
    """Whether Spark runs inside this process's own JVM."""
    return config.spark.master.startswith("local")


def _set_environment(*, local: bool) -> None:
    """The workers run this very Python; those of another machine one that PYSPARK_PYTHON may name."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Spark takes over Ctrl-C in the main thread: give it back to the program, which stops its pipeline itself."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _launch(conf: SparkConf, output: Path | None) -> None:
    """Start the JVM, unless there is one. Its standard error goes to the file, and so does that of its workers."""
    if SparkContext._gateway is not None:
        return
    if output is None:
        SparkContext._ensure_initialized(conf=conf)
        return
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"stderr": target}), conf=conf)  # type: ignore[no-untyped-call]
    finally:
        os.close(target)
