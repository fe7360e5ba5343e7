"""Errors of what comes before any work: settings, optional parts, a local cluster."""

from __future__ import annotations

from everlog.errors.base import EverlogError, InvalidInput


class InvalidConfig(InvalidInput):
    """A setting is unknown or out of range."""


class MissingExtra(EverlogError):
    """An optional dependency is missing."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"this needs an optional part of Everlog: pip install 'everlog[{extra}]'")
        self.extra = extra


class ForkedProcess(EverlogError):
    """The log was opened by a process of which this one is a fork; threads and locks do not survive that."""

    def __init__(self, what: str, pid: int) -> None:
        super().__init__(
            f"{what} was opened by process {pid}, of which this one is a fork: close it before the fork and connect "
            "again in the child, or start the child with multiprocessing's 'spawn' or 'forkserver' and connect there"
        )
        self.pid = pid


class ClusterFailed(EverlogError):
    """The local cluster, or something that it needs, is not available."""


class MissingProgram(ClusterFailed):
    """A program that this needs is not installed, or not in the version that it needs."""


class DownloadFailed(ClusterFailed):
    """The jars could not be downloaded, or are not the ones that were expected."""

    retriable = True


class PortTaken(ClusterFailed):
    """An address of the cluster cannot be listened at."""

    def __init__(self, server: str, address: str, message: str) -> None:
        super().__init__(f"{server} cannot listen at {address}: {message}")
        self.server = server
        self.address = address


class ServerFailed(ClusterFailed):
    """A server ended, or did not answer in time; `lines` are the last ones that it wrote."""

    def __init__(self, server: str, what: str, log: str, lines: list[str]) -> None:
        last = "; it wrote last: " + " | ".join(lines) if lines else ""
        super().__init__(f"{server} {what}: see {log}{last}")
        self.server = server
        self.log = log
        self.lines = lines
