"""What brokers and nodes have in common: a folder, a log, a process, an address that answers."""

from __future__ import annotations

import errno
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path

from everlog.cluster.logs import GrowingFile
from everlog.cluster.processes import POLL_S, DetachedProcess, telling
from everlog.config.private import make_folder
from everlog.errors import PortTaken, ServerFailed

LAST_LINES = 3


class Server(ABC):
    """One server of the cluster."""

    def __init__(self, name: str, folder: Path, host: str, ports: list[int]) -> None:
        self.name = name
        self.folder = folder / name
        self.host = host
        self.ports = ports  # the first is for clients
        self.log = self.folder / "server.log"
        self.console = self.folder / "console.log"  # before its logging begins, and when Java itself fails
        self.process = DetachedProcess(self.folder / "pid")
        self._written = GrowingFile(self.log)

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{self.host}:{self.ports[0]}"

    @abstractmethod
    def prepare(self) -> list[str]:
        """Write its settings; the command that runs it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves clients; asked often while it starts."""

    def start(self) -> None:
        """Start it; `wait` says when it serves."""
        for port in self.ports:
            self._check_free(port)
        make_folder(self.folder / "tmp")
        self._written.skip()
        self.process.start(self.prepare(), self.console)

    def wait(self, patience: float, until: Callable[[], bool] | None = None) -> None:
        """Wait until it serves, or for something else that it should do.

        If it dies or takes too long, it is ended and the error shows what it wrote last.
        """
        end = time.monotonic() + patience
        reached = until or self.answers
        while not (self.listens() and reached()):
            if self.process.pid is None:
                raise self._failed("ended instead of starting")
            if time.monotonic() > end:
                self.process.kill()
                raise self._failed(f"did not answer within {patience:g} s")
            time.sleep(POLL_S)

    def listens(self) -> bool:
        """Whether its address takes connections."""
        try:
            socket.create_connection((self.host, self.ports[0]), timeout=1).close()
        except OSError:
            return False
        return True

    def last_lines(self, count: int) -> list[str]:
        """The end of its log; if that does not say anything, of what Java wrote."""
        for path in (self.log, self.console):
            if path.exists():
                with path.open(errors="replace") as file:
                    if lines := deque(file, maxlen=count):
                        return [line.rstrip() for line in lines]
        return []

    def java_options(self, heap: str) -> list[str]:
        """Keep all that Java writes inside the folder; let it die rather than limp when memory is short."""
        return [
            f"-Xmx{heap}",
            f"-Deverlog.log={self.log}",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-XX:ErrorFile={self.folder / 'crash.log'}",
            "-XX:+PerfDisableSharedMem",
            "-XX:+ExitOnOutOfMemoryError",
        ]

    def _check_free(self, port: int) -> None:
        with socket.socket() as probe:
            # As servers do: the last one's connections, which linger for a minute, are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, port))
            except OSError as error:
                raise PortTaken(self.name, f"{self.host}:{port}", _reason(error, self.host)) from error

    def _failed(self, what: str) -> ServerFailed:
        """Show what it wrote since it was started, without the places in the code."""
        lines = self._written.new_lines() or self.last_lines(100)
        return ServerFailed(self.name, what, str(self.log), telling(lines)[-LAST_LINES:])


def _reason(error: OSError, host: str) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine has no such address: on macOS add it with 'sudo ifconfig lo0 alias {host}'"
    if error.errno == errno.EADDRINUSE:
        return "another program listens there: stop it, or make a new cluster in another folder"
    return str(error.strerror)
