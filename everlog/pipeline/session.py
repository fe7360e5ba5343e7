"""The Spark session: settings that make small local batches quick and quiet."""

from __future__ import annotations

import os
import sys

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
    # No forked helpers for every checkpoint file: about 100 ms less per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def open_session(config: Config) -> SparkSession:
    """A session as `[spark]` says; the settings there win over ours."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("everlog").master(config.spark.master)
    settings = _LOCAL | {"spark.driver.memory": config.spark.memory} | config.spark.conf
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise ReplicationFailed(
            f"Spark did not start ({error}): it needs a JDK 17 or 21 on the PATH or in JAVA_HOME"
        ) from error
