"""Who uses the processors meanwhile: Kafka, Cassandra, Spark, its Python workers. Asked of Linux; elsewhere unknown."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
_LISTENS = "0A"

KAFKA, CASSANDRA, SPARK, WORKERS, OWN, HELPERS, OTHERS = (
    "Kafka",
    "Cassandra",
    "Spark's JVM",
    "Python workers",
    "this process",
    "helper processes",
    "everything else",
)


@dataclass(slots=True)
class Usage:
    """Processor seconds by who used them, over a number of operations and seconds."""

    seconds: float = 0.0
    operations: int = 0
    busy: dict[str, float] = field(default_factory=dict)

    def processors(self) -> dict[str, float]:
        """How many processors each kept busy."""
        return {who: round(seconds / self.seconds, 2) for who, seconds in self.busy.items()}

    def microseconds(self) -> dict[str, float]:
        """What each used for one operation."""
        return {who: round(seconds * 1e6 / self.operations, 2) for who, seconds in self.busy.items()}

    def as_json(self) -> dict[str, dict[str, float]]:
        return {"processors": self.processors(), "microseconds": self.microseconds()}

    def __str__(self) -> str:
        costs, shares = self.microseconds(), sorted(self.processors().items(), key=lambda found: -found[1])
        return ", ".join(f"{who} {share:.2f} ({costs[who]:.1f} µs)" for who, share in shares if share >= 0.01)


def total(rounds: Sequence[Usage]) -> Usage:
    """All rounds together."""
    names = {who for usage in rounds for who in usage.busy}
    return Usage(
        sum(usage.seconds for usage in rounds),
        sum(usage.operations for usage in rounds),
        {who: sum(usage.busy.get(who, 0.0) for usage in rounds) for who in names},
    )


class Processor:
    """Watches the servers of some ports, and what this process has started."""

    def __init__(self, kafka: set[int], cassandra: set[int]) -> None:
        self.servers = {KAFKA: listeners(kafka), CASSANDRA: listeners(cassandra)}

    @contextmanager
    def watch(self) -> Iterator[Usage]:
        """What is used while this lasts; the caller says how many operations it was for."""
        usage, started, before = Usage(), time.perf_counter(), self._busy()
        yield usage
        after = self._busy()
        usage.seconds = time.perf_counter() - started
        usage.busy = {who: after[who] - before.get(who, 0.0) for who in after}

    def _busy(self) -> dict[str, float]:
        if not (PROC / "stat").exists():
            return {}
        roles = self._roles()
        busy = {who: sum(map(_seconds, pids)) for who, pids in roles.items()}
        busy[HELPERS] += _ended_seconds(os.getpid())
        busy[OTHERS] = _all_seconds() - sum(busy.values())
        return busy

    def _roles(self) -> dict[str, set[int]]:
        """Which processes are whose, now: workers come and go."""
        parents = _parents()
        servers = set().union(*self.servers.values())
        own = _descendants(os.getpid(), parents) - servers
        machines = {pid for pid in own if _name(pid) == "java"}
        workers = set[int]().union(*(_descendants(pid, parents) for pid in machines))
        helpers = own - machines - workers
        return {**self.servers, SPARK: machines, WORKERS: workers, HELPERS: helpers, OWN: {os.getpid()}}


def listeners(ports: set[int]) -> set[int]:
    """The processes of this machine that listen on these ports."""
    sockets = set()
    for table in (PROC / "net" / "tcp", PROC / "net" / "tcp6"):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) in ports:
                sockets.add(f"socket:[{rest[5]}]")
    return {pid for pid in _pids() if sockets & set(opened(pid))}


def opened(pid: int) -> Iterator[str]:
    """What a process has open, as far as we may know."""
    try:
        links = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for link in links:
        with suppress(OSError):  # closed meanwhile
            yield str(link.readlink())


def command(pid: int) -> list[str]:
    """The words of a process's command line."""
    try:
        return (PROC / str(pid) / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def _pids() -> list[int]:
    return [int(found.name) for found in PROC.iterdir() if found.name.isdecimal()] if PROC.exists() else []


def _stat(pid: int) -> list[str]:
    """The fields behind the name; nothing of a process that is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _seconds(pid: int) -> float:
    """Of the process; of workers' parents also that of children that ended, which would be lost otherwise."""
    own = sum(map(int, _stat(pid)[11:13])) / TICKS
    return own if pid == os.getpid() else own + _ended_seconds(pid)


def _ended_seconds(pid: int) -> float:
    """Of children that ended."""
    return sum(map(int, _stat(pid)[13:15])) / TICKS


def _all_seconds() -> float:
    """user, nice, system, irq, softirq of all processors."""
    numbers = [int(word) for word in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(numbers[:3]) + sum(numbers[5:7])) / TICKS


def _parents() -> dict[int, int]:
    return {pid: int(found[1]) for pid in _pids() if (found := _stat(pid))}


def _descendants(pid: int, parents: Mapping[int, int]) -> set[int]:
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found
