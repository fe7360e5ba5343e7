"""PostgreSQL and Redis for what is compared: started for a measurement, in its folder, and removed afterwards.

Both are told to keep every commit on the disk, as Everlog does; PostgreSQL is asked whether it does.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0
STOP_S = 30.0
LOOK_S = 0.05
# PostgreSQL refuses to run as root: the first of these that exists runs it then.
USERS = ("postgres", "nobody")
DATABASE_USER = "bench"
# What a commit must have survived; the comparison is void with anything else.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Postgres:
    """A running PostgreSQL. `dsn` is how its clients find it."""

    def __init__(self, sockets: Path, version: str) -> None:
        from psycopg import pq

        self.host = str(sockets)
        self.user = DATABASE_USER
        self.database = "postgres"
        self.version = version
        # Its C parts are quicker than its Python ones.
        self.about = f"PostgreSQL {version}, psycopg's implementation: {pq.__impl__}"
        self.dsn = f"host={self.host} user={self.user} dbname={self.database}"


class Redis:
    """A running Redis. `sync` is when its log is written to the disk: always, or every second."""

    def __init__(self, socket: Path) -> None:
        self.url = f"unix://{socket}"
        self._client = self.client()
        self.version = str(self._client.info("server")["redis_version"])

    def client(self) -> Any:
        import redis

        return redis.Redis.from_url(self.url)

    def sync(self, when: str) -> None:
        """From now on."""
        self._client.config_set("appendfsync", when)
        if self._client.config_get("appendfsync")["appendfsync"] != when:
            raise RuntimeError(f"Redis does not take appendfsync {when}")

    def close(self) -> None:
        self._client.close()


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """A new PostgreSQL with its defaults, which are durable, on a socket in a folder of its own."""
    bin_folder = Path(_program("EVERLOG_INITDB", "initdb", "postgresql")).parent
    user = _server_user()
    with _own_folder(folder, "postgres", user) as data, _sockets(user) as sockets:
        _run([bin_folder / "initdb", "-D", data, "-U", DATABASE_USER, "-A", "trust", "-E", "UTF8", "--locale=C"], user)
        words: list[str | Path] = [bin_folder / "postgres", "-D", data, "-k", sockets, "-c", "listen_addresses="]
        with _running(words, folder / "postgres.log", user, signal.SIGINT) as process:
            found = Postgres(sockets, _wait_for_postgres(sockets, process))
            yield found


@contextmanager
def redis(folder: Path) -> Iterator[Redis]:
    """A new Redis whose every change is on the disk before it is acknowledged."""
    program = _program("EVERLOG_REDIS", "redis-server", "redis-server")
    with _own_folder(folder, "redis", None) as data, _sockets(None) as sockets:
        socket = sockets / "redis.sock"
        words: list[str | Path] = [program, "--port", "0", "--unixsocket", socket, "--dir", data, "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", "always"]
        with _running(words, folder / "redis.log", None, signal.SIGTERM) as process:
            _wait(process, socket.exists, "Redis")
            found = Redis(socket)
            try:
                yield found
            finally:
                found.close()


def _program(variable: str, name: str, package: str) -> str:
    """Where a program is: `make bench` says it, else we look."""
    found = os.environ.get(variable) or shutil.which(name)
    if found is None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        found = str(places[-1]) if places else None
    if found is None:
        raise RuntimeError(f"{name} is not installed: install the package {package}, or say in {variable} where it is")
    return found


def _server_user() -> str | None:
    """As whom PostgreSQL runs; None: as we do."""
    if os.getuid() != 0:
        return None
    for name in USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError(f"PostgreSQL does not run as root, and there is none of the users {', '.join(USERS)}")


@contextmanager
def _own_folder(folder: Path, name: str, user: str | None) -> Iterator[Path]:
    """A folder for the data of a server, beside those of the others: on the same disk, to be fair."""
    if user is not None and not all(_passable(parent) for parent in [folder, *folder.parents]):
        raise RuntimeError(f"{user} cannot reach {folder}: choose a --folder below folders that every user may enter")
    data = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    if user is not None:
        shutil.chown(data, user)
    try:
        yield data
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _passable(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


@contextmanager
def _sockets(user: str | None) -> Iterator[Path]:
    """A short path: a socket's has at most about a hundred characters."""
    folder = Path(tempfile.mkdtemp(prefix="everlog-"))
    if user is not None:
        shutil.chown(folder, user)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as(user: str | None) -> dict[str, Any]:
    """Options of a process that runs as another user."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


def _run(words: Sequence[str | Path], user: str | None) -> None:
    done = subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True, **_as(user))
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {(done.stderr or done.stdout).strip()[-1000:]}")


@contextmanager
def _running(
    words: Sequence[str | Path], log: Path, user: str | None, stop: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    """A server at work; it ends in good order, or is killed if it does not."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **_as(user)
        )
    try:
        yield process
    except BaseException:
        if process.poll() is not None:
            raise RuntimeError(f"{words[0]} ended: {log.read_text(errors='replace')[-1000:]}") from None
        raise
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_postgres(sockets: Path, process: subprocess.Popen[bytes]) -> str:
    """Until it answers; its version. It must be durable."""
    import psycopg

    dsn = f"host={sockets} user={DATABASE_USER} dbname=postgres"

    def answers() -> bool:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    _wait(process, answers, "PostgreSQL")
    with psycopg.connect(dsn) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in (*DURABLE, "server_version")}
    settings = {name: str(row[0]) for name, row in found.items() if row is not None}
    version = settings.pop("server_version")
    if settings != DURABLE:
        raise RuntimeError(f"PostgreSQL has {settings}, not {DURABLE}: the comparison would not be fair")
    return version


def _wait(process: subprocess.Popen[bytes], ready: Any, name: str) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended while it started")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} does not answer after {START_S:.0f} s")
        time.sleep(LOOK_S)
