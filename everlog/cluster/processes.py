"""Processes that outlive this program: started detached, found again by a pid file, signalled, ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everlog.config.private import private
from everlog.errors import ClusterFailed

POLL_S = 0.05
_FRAME = re.compile(r"\s+(at |\.\.\. \d+ )")


class _Birth(msgspec.Struct, frozen=True):
    """A process, and when it began: the system gives a pid to another process later."""

    pid: int
    born: str


class DetachedProcess:
    """The process that a pid file names."""

    def __init__(self, pid_file: Path) -> None:
        self._pid_file = pid_file

    def start(self, command: list[str], output: Path) -> None:
        """Start it in a session of its own: neither Ctrl-C nor the end of this program reaches it."""
        assert self.pid is None, "it runs already"
        pid = os.posix_spawn(
            command[0],
            command,
            java_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        scratch = self._pid_file.with_suffix(".new")
        with open(scratch, "wb", opener=private) as file:
            file.write(msgspec.json.encode(_Birth(pid, _born(pid) or "")))
        scratch.replace(self._pid_file)

    @property
    def pid(self) -> int | None:
        """The process if it lives."""
        try:
            birth = msgspec.json.decode(self._pid_file.read_bytes(), type=_Birth)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return birth.pid if _born(birth.pid) == birth.born else None

    @property
    def memory(self) -> int | None:
        """The bytes of it that are in memory."""
        pid = self.pid
        return None if pid is None else _memory(pid)

    def ask_to_stop(self) -> None:
        """Let it finish; a paused process must go on to do so."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it now, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self.wait_until_gone(30)

    def wait_until_gone(self, patience: float) -> bool:
        """Whether it is gone after at most this many seconds."""
        end = time.monotonic() + patience
        while self.pid is not None:
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        self._pid_file.unlink(missing_ok=True)
        return True

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        try:
            if pid is not None:
                os.kill(pid, number)
        except ProcessLookupError:
            return  # it ended meanwhile


def run_to_end(what: str, command: Sequence[str], *, patience: float = 120) -> None:
    """Run a program; if it fails, say what it wrote last. The command itself is not shown: it may hold passwords."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env=java_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterFailed(f"{what}: {Path(command[0]).name} did not end within {patience:g} s: try again") from error
    except OSError as error:
        raise ClusterFailed(f"{what}: {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        last = " | ".join(telling((done.stdout + done.stderr).splitlines())[-3:])
        raise ClusterFailed(f"{what}: {Path(command[0]).name} failed with code {done.returncode}: {last}")


def telling(lines: Sequence[str]) -> list[str]:
    """The lines that say something: not the empty ones, nor the places in the code."""
    return [line.strip() for line in lines if line.strip() and not _FRAME.match(line)]


def java_environment() -> dict[str, str]:
    """In the plain "C" locale Java does not find files whose names have letters beyond ASCII."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _born(pid: int) -> str | None:
    """When a process began, in whatever words the system uses; None if it is gone."""
    _reap(pid)
    try:
        # What stands behind the name, which may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self").exists() else _ask_ps(pid, "lstart")
    state, threads, born = fields[0], int(fields[17]), fields[19]
    if state in "ZX" and threads <= 1:  # with more of them it is only about to end, and still holds its ports
        _reap(pid)
        return None
    return born


def _memory(pid: int) -> int | None:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):
        kilobytes = None if Path("/proc/self").exists() else _ask_ps(pid, "rss")
        return int(kilobytes) * 1024 if kilobytes else None
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _reap(pid: int) -> None:
    """A child of this program that ended stays among the processes until its parent asks how it ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _ask_ps(pid: int, field: str) -> str | None:
    """For systems without /proc."""
    answer = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
    )
    return answer.stdout.strip() or None
