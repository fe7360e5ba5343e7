"""A real Kafka and a real Cassandra on this machine, as ordinary processes under one folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from everlog.cluster.cassandra import CassandraNode, find_cassandra_java
from everlog.cluster.jars import DownloadProgress, exclusively, find_jars, silent
from everlog.cluster.kafka import Broker, check_client, find_kafka_java
from everlog.cluster.secure import KEYS, ca_file, make_keys
from everlog.cluster.server import Server
from everlog.cluster.state import ServerState, check_nodes, load_state, new_state, save_state, write_private
from everlog.config import CONFIG_FILE, Config, load_config, prepare_folder
from everlog.errors import InvalidConfig, MissingProgram

START_S = 180.0
STOP_S = 30.0
_SPARK = "spark"  # what the pipeline keeps


class ServerStatus(msgspec.Struct, frozen=True):
    """One server as it is now."""

    name: str
    address: str
    running: bool
    pid: int | None
    memory: int | None
    log: str


class LocalCluster:
    """A cluster of `nodes` brokers and as many Cassandra nodes in a folder.

    What a new folder's cluster is like is decided by its first `up` and stays so: size, ports, passwords.

    >>> cluster = LocalCluster(Path("everlog-cluster"), nodes=1)
    >>> config = cluster.up()  # doctest: +SKIP
    >>> cluster.down()  # doctest: +SKIP
    """

    def __init__(self, folder: Path, *, nodes: int | None = None, secure: bool | None = None) -> None:
        self.folder = folder.absolute()
        self._nodes = nodes
        self._secure = secure
        self._state_file = self.folder / "cluster.json"
        self._lock_file = self.folder / "cluster.lock"

    @property
    def exists(self) -> bool:
        """Whether the folder holds a cluster, running or not."""
        return self._state_file.exists()

    @property
    def config_file(self) -> Path:
        """The configuration that `up` writes."""
        return self.folder / CONFIG_FILE

    def up(self, progress: DownloadProgress = silent) -> Config:
        """Start what does not run, wait until all of it serves, and return the configuration to use it with.

        If a server does not start, those that this call started are stopped again.
        """
        self._check_folder()
        check_client()
        prepare_folder(self.folder)
        with exclusively(self._lock_file):
            state = self._decide()
            brokers, nodes = self._brokers(state), self._cassandra_nodes(state)
            missing = _bring_what_is_needed(self.folder, state, brokers, nodes, progress)
            if missing is not None:
                _start([brokers], progress)
                raise MissingProgram(f"Kafka runs at {_addresses(brokers)}, but {missing}")
            # Brokers find each other, so they begin together; nodes join one after the other.
            _start([[*brokers, nodes[0]], *([node] for node in nodes[1:])], progress)
            for node in nodes:
                node.wait(START_S, until=node.is_joined)
            if not self.config_file.exists():
                if state.logins is not None:
                    brokers[0].grant(state.logins)
                    nodes[0].grant(state.logins)
                self._write_config(state, brokers, nodes)
        return load_config(self.config_file)

    def down(self, *, wipe: bool = False) -> int:
        """Stop all servers, and with `wipe` remove what they and `up` wrote. How many there were to stop."""
        if not self.exists:
            return 0
        with exclusively(self._lock_file):
            running = _alive(self.servers())
            stop(running)
            if wipe:
                self._wipe()
        return len(running)

    def servers(self) -> list[Server]:
        """All servers of the folder's cluster, running or not."""
        state = load_state(self._state_file)
        return [] if state is None else [*self._brokers(state), *self._cassandra_nodes(state)]

    def server(self, name: str) -> Server:
        """One of them: `kafka-1`, `cassandra-1`."""
        known = {server.name: server for server in self.servers()}
        if name not in known:
            raise InvalidConfig(f"there is no server {name!r} in {self.folder}: there are {', '.join(known) or 'none'}")
        return known[name]

    def status(self) -> list[ServerStatus]:
        """How each server is."""
        return [_status(server) for server in self.servers()]

    def logs(self, name: str, lines: int = 50) -> list[str]:
        """The last lines that a server wrote."""
        return self.server(name).last_lines(lines)

    def _check_folder(self) -> None:
        if self._nodes is not None:
            check_nodes(self._nodes)
        if "," in str(self.folder):
            raise InvalidConfig(f"{self.folder}: Kafka ends a folder's name at a comma: choose another folder")
        if self.config_file.exists() and not self.exists:
            raise InvalidConfig(f"{self.config_file} is of something else: choose another folder for the cluster")

    def _decide(self) -> ServerState:
        """What was decided for this folder; later calls may not change it."""
        state = load_state(self._state_file)
        if state is None:
            state = new_state(1 if self._nodes is None else self._nodes, secure=bool(self._secure))
            save_state(self._state_file, state)
        for name, wanted, found in (("nodes", self._nodes, state.nodes), ("secure", self._secure, state.secure)):
            if wanted is not None and wanted != found:
                raise InvalidConfig(
                    f"the cluster in {self.folder} was made with {name}={found}: choose another folder, "
                    "or remove it with 'everlog cluster down --wipe'"
                )
        return state

    def _wipe(self) -> None:
        """Remove what this class made and nothing else: the folder may be a user's home."""
        for server in self.servers():
            shutil.rmtree(server.folder, ignore_errors=True)
        for name in (_SPARK, KEYS):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in (self.config_file, self._state_file, self._lock_file):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # others have files here
            self.folder.rmdir()

    def _brokers(self, state: ServerState) -> list[Broker]:
        return [Broker(self.folder, state, number + 1) for number in range(state.nodes)]

    def _cassandra_nodes(self, state: ServerState) -> list[CassandraNode]:
        return [CassandraNode(self.folder, state, number + 1) for number in range(state.nodes)]

    def _write_config(self, state: ServerState, brokers: list[Broker], nodes: list[CassandraNode]) -> None:
        """Written once: what its user adds to it stays."""
        login = state.logins.application if state.logins else None
        secured = (
            []
            if login is None
            else [
                "tls = true",
                f"ca_file = {_quoted(str(ca_file(self.folder)))}",
                f"username = {_quoted(login.user)}",
                f"password = {_quoted(login.password)}",
            ]
        )
        lines = [
            "# The cluster of this folder, started by 'everlog cluster up'. Other settings may be added.",
            f'data = "{_SPARK}"',
            "",
            "[kafka]",
            f"bootstrap_servers = {_quoted(_addresses(brokers))}",
            f"replication_factor = {min(3, state.nodes)}",
            f"min_insync_replicas = {min(2, state.nodes)}",
            *secured,
            "",
            "[cassandra]",
            f"contact_points = [{', '.join(_quoted(node.address) for node in nodes)}]",
            'local_datacenter = "datacenter1"',
            f"replication_factor = {min(3, state.nodes)}",
            *secured,
            "",
        ]
        write_private(self.config_file, "\n".join(lines).encode())


def stop(servers: Sequence[Server]) -> None:
    """Ask them all to finish, wait, and end those that do not."""
    for server in servers:
        server.process.ask_to_stop()
    end = time.monotonic() + STOP_S
    for server in servers:
        if not server.process.wait_until_gone(max(0.0, end - time.monotonic())):
            server.process.kill()


def _bring_what_is_needed(
    folder: Path, state: ServerState, brokers: list[Broker], nodes: list[CassandraNode], progress: DownloadProgress
) -> MissingProgram | None:
    """Jars, keys and Java for what does not run. What Cassandra lacks is returned: Kafka can start without it."""
    if state.logins is not None and not ca_file(folder).exists():
        make_keys(find_kafka_java(), folder, [node.host for node in nodes], state.logins.keystore)
    if _dead(brokers):
        find_kafka_java()
        find_jars("kafka", progress)
    if _dead(nodes):
        try:
            find_cassandra_java()
        except MissingProgram as missing:
            return missing
        find_jars("cassandra", progress)
    return None


def _start(groups: Sequence[Sequence[Server]], progress: DownloadProgress) -> None:
    """Start what does not run, a group after the other; if one fails, stop those that were started here."""
    done, total = 0, sum(map(len, groups))
    started: list[Server] = []
    progress("servers", done, total)
    try:
        for group in groups:
            for server in _dead(group):
                server.start()
                started.append(server)
            for server in group:
                server.wait(START_S)
                progress("servers", done := done + 1, total)
    except BaseException:
        stop(started)
        raise


def _dead(servers: Iterable[Server]) -> list[Server]:
    return [server for server in servers if server.process.pid is None]


def _alive(servers: Iterable[Server]) -> list[Server]:
    return [server for server in servers if server.process.pid is not None]


def _addresses(servers: Iterable[Server]) -> str:
    return ",".join(server.address for server in servers)


def _status(server: Server) -> ServerStatus:
    pid = server.process.pid
    return ServerStatus(
        name=server.name,
        address=server.address,
        running=pid is not None,
        pid=pid,
        memory=server.process.memory,
        log=str(server.log),
    )


def _quoted(text: str) -> str:
    """A TOML string: those of JSON are."""
    return msgspec.json.encode(text).decode()
