"""An archive of Spark's loaded classes: a pipeline in a process of its own starts in half the time with it.

Kill tests start dozens of them. The archive is made once per checkout; a JVM that it does not fit ignores it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyspark

from everlog.config import Config, SparkConfig
from tests.pipeline.backends import write_config

# It is over before the better compiler would have been worth its work.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
OPTIONS = "spark.driver.extraJavaOptions"
FOLDER = Path(__file__).parents[2] / ".pytest_cache"
SECONDS = 300


def archive_path() -> Path:
    java = os.environ.get("JAVA_HOME", "java").strip("/").replace("/", "-")
    return FOLDER / f"spark-{pyspark.__version__}-{java}.jsa"


def with_quick_start(config: Config) -> Config:
    """The configuration of a pipeline that will not live for long."""
    archive = archive_path()
    options = f"{SHORT_LIVED} -XX:SharedArchiveFile={archive}" if archive.is_file() else SHORT_LIVED
    conf = {**config.spark.conf, OPTIONS: options}
    return msgspec.structs.replace(config, spark=msgspec.structs.replace(config.spark, conf=conf))


def make_archive(folder: Path) -> None:
    """Make it unless it is there, with what a pipeline on an empty folder loads."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other lane may want it, too
        archive = archive_path()
        if archive.is_file():
            return
        made = archive.with_suffix(".part")
        options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made}"
        config = Config(data=str(folder / "data"), spark=SparkConfig(conf={OPTIONS: options}))
        command = [sys.executable, "-m", "tests.faults.pipeline", str(write_config(config, folder / "config.json"))]
        # The JVM holds the output open until it has written the archive, after the program's own end.
        done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        if made.is_file():  # without it all goes on as it is
            made.rename(archive)
