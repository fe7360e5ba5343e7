"""A Cassandra node. Nodes of one cluster share a port and differ in their address: 127.0.0.1, 127.0.0.2, …"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everlog.cluster import secure
from everlog.cluster.cql import Cql, CqlError
from everlog.cluster.jars import HERE, find_jars
from everlog.cluster.java import Java, find_java
from everlog.cluster.server import Server
from everlog.cluster.state import Login, Logins, ServerState, write_private
from everlog.errors import ClusterFailed
from everlog.runtime.statements import load_statements

VERSIONS = (17, 11)
JAVA_VARIABLE = "EVERLOG_CASSANDRA_JAVA_HOME"
# Every node keeps this table, so asking for it shows how many of them take part.
_ASK = "SELECT id FROM system_distributed.repair_history WHERE keyspace_name = 'none' AND columnfamily_name = 'none'"

_EXPORTS = (
    "java.base/java.lang.ref java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch "
    "java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server "
    "java.sql/java.sql"
)
_OPENS = (
    "java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.nio java.base/java.util "
    "java.base/java.util.concurrent java.base/java.util.concurrent.atomic java.base/jdk.internal.loader "
    "java.base/jdk.internal.math java.base/jdk.internal.module java.base/jdk.internal.ref "
    "java.base/jdk.internal.reflect java.base/jdk.internal.util.jar java.base/sun.nio.ch "
    "jdk.management/com.sun.management.internal"
)


class CassandraNode(Server):
    """`CassandraNode(folder, state, 1)`: the first of `state.nodes`, through which the others find each other."""

    def __init__(self, folder: Path, state: ServerState, number: int) -> None:
        super().__init__(f"cassandra-{number}", folder, f"127.0.0.{number}", [state.cassandra_port, state.storage_port])
        self._state = state
        self._number = number
        self._cluster_folder = folder

    def prepare(self) -> list[str]:
        java = find_cassandra_java()
        settings = self.folder / "cassandra.yaml"
        write_private(settings, json.dumps(self._settings(), indent=2).encode())  # JSON is YAML
        jars = find_jars("cassandra")
        (agent,) = jars.glob("jamm-*.jar")
        return [
            str(java.program),
            *self.java_options("1g" if self._state.nodes == 1 else "512m"),
            f"-javaagent:{agent}",
            f"-Dlogback.configurationFile={HERE / 'logback.xml'}",
            f"-Dcassandra.config={settings.as_uri()}",
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dcassandra.logdir={self.folder}",
            f"-Djna.tmpdir={self.folder / 'tmp'}",
            # Its caution is for clusters of many machines: each of these saves seconds. Only those that join need time
            # to reach the first.
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            f"-Dcassandra.ring_delay_ms={100 if self._number == 1 else 20_000}",
            *secure.cassandra_options(self._state.logins),
            "-Djdk.attach.allowAttachSelf=true",
            "-Dio.netty.tryReflectionSetAccessible=true",
            *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS.split()),
            *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS.split()),
            "-cp",
            str(jars / "*"),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def answers(self) -> bool:
        return self._reads_from(1)

    def is_joined(self) -> bool:
        """Whether it knows that the others are there, so that a quorum can be reached."""
        return self._reads_from(min(3, self._state.nodes))

    def _reads_from(self, nodes: int) -> bool:
        try:
            with self.connect() as cql:
                cql.query(_ASK, replicas=nodes)
        except (OSError, CqlError):
            return False
        return True

    def connect(self, login: Login | None = None) -> Cql:
        """A connection, as the administrator if no other login is given."""
        logins = self._state.logins
        if logins is None:
            return Cql(self.host, self.ports[0])
        tls = secure.client_context(self._cluster_folder)
        try:
            return Cql(self.host, self.ports[0], login=login or logins.admin, tls=tls)
        except CqlError as error:
            if login is not None or not error.bad_credentials:
                raise
        # A new node knows only the super user that Cassandra begins with.
        return Cql(self.host, self.ports[0], login=secure.CASSANDRA_DEFAULT, tls=tls)

    def grant(self, logins: Logins) -> None:
        """Let the application work with any keyspace. Doing it again changes nothing.

        The super user that every Cassandra begins with makes ours, which then shuts it out.
        """
        statements = load_statements("everlog.cluster", "rights.cql")
        replicas = min(3, self._state.nodes)
        try:
            with self.connect() as first:
                for name in ("keep_roles_on_all", "create_admin"):
                    first.query(statements[name].format(replicas=replicas, login=logins.admin))
            with self.connect(logins.admin) as admin:
                for name in ("create_application", "grant_application", "shut_out_default"):
                    admin.query(statements[name].format(login=logins.application))
        except (OSError, CqlError) as error:
            raise ClusterFailed(f"{self.name} did not take the roles: {error}: try again") from error

    def _settings(self) -> dict[str, Any]:
        state = self._state
        # Spread evenly over the ring.
        token = -(2**63) + 2**64 * (self._number - 1) // state.nodes
        return {
            "cluster_name": f"everlog-{state.storage_port}",
            "num_tokens": 1,
            "initial_token": str(token),
            "auto_bootstrap": self._number == 1,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": f"127.0.0.1:{state.storage_port}"}],
                }
            ],
            "listen_address": self.host,
            "storage_port": state.storage_port,
            "rpc_address": self.host,
            "native_transport_port": state.cassandra_port,
            "data_file_directories": [str(self.folder / "data")],
            "commitlog_directory": str(self.folder / "commitlog"),
            "saved_caches_directory": str(self.folder / "saved_caches"),
            "hints_directory": str(self.folder / "hints"),
            "cdc_raw_directory": str(self.folder / "cdc_raw"),
            "commitlog_sync": "periodic",
            "commitlog_sync_period": "10000ms",
            "commitlog_total_space": "2GiB",
            "auto_snapshot": False,
            "paxos_variant": "v2",
            # New clusters need not read the files of older versions.
            "storage_compatibility_mode": "NONE",
            "sstable": {"selected_format": "bti"},
            "memtable": {"configurations": {"trie": {"class_name": "TrieMemtable"}, "default": {"inherits": "trie"}}},
            **secure.cassandra_settings(state.logins, self._cluster_folder),
        }


def find_cassandra_java() -> Java:
    """Cassandra 5 runs on two versions only."""
    return find_java("Cassandra", VERSIONS, JAVA_VARIABLE)
