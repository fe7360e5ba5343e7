"""What it ran on, and how quick its disk is: no figure means much without."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

PACKAGES = (
    "everlog",
    "eventsourcing",
    "procrastinate",
    "pgqueuer",
    "dramatiq",
    "psycopg",
    "redis",
    "litestar",
    "uvicorn",
    "pyspark",
    "pyarrow",
    "msgspec",
    "confluent-kafka",
    "acsylla",
)


def describe() -> dict[str, Any]:
    """Processors and versions."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "java": _java(),
        **{name: _version(name) for name in PACKAGES},
    }


def about(found: dict[str, Any]) -> str:
    """The same for people, in two lines."""
    commits = ", ".join(f"{rate:,.0f}" for rate in found["commits_per_second"])
    return (
        f"{found['cpus']} processors (load {found['load']} at the start), Python {found['python']}, "
        f"SQLite {found['sqlite']}, Spark {found['pyspark']}, eventsourcing {found['eventsourcing']}\n"
        f"the disk: {commits} SQLite commits/s (synchronous=FULL), before and after"
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.splitlines()[0] if answer else None


def commits_per_second(folder: Path, seconds: float = 1.0) -> float:
    """The yardstick: SQLite alone, one small row per transaction, WAL and synchronous=FULL."""
    path = folder / "yardstick.db"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS row (id INTEGER PRIMARY KEY, data BLOB)")
        commits, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            connection.execute("INSERT INTO row (data) VALUES (?)", (b"x" * 200,))
            commits += 1
    finally:
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return commits / elapsed
