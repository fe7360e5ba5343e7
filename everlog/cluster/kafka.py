"""A Kafka broker, which is its own controller too (KRaft)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from everlog.cluster import secure
from everlog.cluster.jars import HERE, find_jars
from everlog.cluster.java import Java, find_java
from everlog.cluster.processes import run_to_end
from everlog.cluster.server import Server
from everlog.cluster.state import Logins, ServerState, write_private
from everlog.errors import ClusterFailed, MissingExtra

VERSIONS = range(17, 100)
HEAP = "384m"
HOST = "127.0.0.1"
# A record of 4 MiB and what stands around it.
MAX_RECORD_BYTES = 4 * 1024 * 1024 + 64 * 1024


class Broker(Server):
    """`Broker(folder, state, 1)`: the first of `state.nodes`."""

    def __init__(self, folder: Path, state: ServerState, number: int) -> None:
        ports = [state.kafka_ports[number - 1], state.controller_ports[number - 1]]
        super().__init__(f"kafka-{number}", folder, HOST, ports)
        self._state = state
        self._number = number
        self._cluster_folder = folder

    def prepare(self) -> list[str]:
        java = find_kafka_java()
        settings = self.folder / "server.properties"
        write_properties(settings, self._properties())
        jars = find_jars("kafka") / "*"
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(java, jars, settings)
        logging = [f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}"]
        return [str(java.program), *self.java_options(HEAP), *logging, "-cp", str(jars), "kafka.Kafka", str(settings)]

    def answers(self) -> bool:
        """Whether it knows of every broker: then it is registered itself, and topics can have all their replicas."""
        admin = admin_client(self._state, self.address, self._cluster_folder)
        from confluent_kafka import KafkaException

        try:
            known = admin.list_topics(timeout=2).brokers
        except KafkaException:
            return False
        return len(known) == self._state.nodes

    def grant(self, logins: Logins) -> None:
        """Let the application work with any topic. Doing it again changes nothing."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        rights = [
            (ResourceType.TOPIC, "*", AclOperation.ALL),
            (ResourceType.GROUP, "*", AclOperation.ALL),
            (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE),  # "broker" stands for the cluster here
            (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS),
            (ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        ]
        user = f"User:{logins.application.user}"
        rules = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, user, "*", operation, AclPermissionType.ALLOW)
            for kind, name, operation in rights
        ]
        admin = admin_client(self._state, self.address, self._cluster_folder)
        try:
            for answer in admin.create_acls(rules, request_timeout=30).values():
                answer.result()
        except KafkaException as error:
            raise ClusterFailed(f"{self.name} did not take the application's rights: {error}: try again") from error

    def _format(self, java: Java, jars: Path, settings: Path) -> None:
        """Give the empty folder the cluster's id, and the first users."""
        tool = [str(java.program), "-cp", str(jars), "kafka.tools.StorageTool", "format"]
        arguments = ["--cluster-id", self._state.kafka_id, "--config", str(settings), "--ignore-formatted"]
        run_to_end(f"{self.name} cannot be set up", [*tool, *arguments, *secure.kafka_users(self._state.logins)])

    def _properties(self) -> dict[str, Any]:
        state = self._state
        replicas, in_sync = min(3, state.nodes), min(2, state.nodes)
        voters = (f"{number}@{HOST}:{port}" for number, port in enumerate(state.controller_ports, 1))
        return {
            "process.roles": "broker,controller",
            "node.id": self._number,
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"CLIENT://{HOST}:{self.ports[0]},CONTROLLER://{HOST}:{self.ports[1]}",
            "inter.broker.listener.name": "CLIENT",
            "controller.listener.names": "CONTROLLER",
            **secure.kafka_properties(state.logins, self._cluster_folder),
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "message.max.bytes": MAX_RECORD_BYTES,
            "replica.fetch.max.bytes": MAX_RECORD_BYTES,
            "group.initial.rebalance.delay.ms": 0,
            # After a kill its place is free again that much later; 9 s by default.
            "broker.session.timeout.ms": 4000,
            "broker.heartbeat.interval.ms": 1000,
            # Kafka's own topics: small, with as many copies as there are brokers for.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            # A third of the heap by default, for compaction, which no topic here uses.
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        }


def find_kafka_java() -> Java:
    """Kafka 4 runs on Java 17 and newer."""
    return find_java("Kafka", VERSIONS)


def check_client() -> None:
    """Kafka's client asks the brokers whether they serve; better to miss it before they start."""
    if find_spec("confluent_kafka") is None:
        raise MissingExtra("kafka")


def admin_client(state: ServerState, servers: str, folder: Path) -> Any:
    """An administrator's client. It stays silent about servers that are not there yet."""
    from confluent_kafka.admin import AdminClient

    login = state.logins.admin if state.logins else None
    return AdminClient({"bootstrap.servers": servers, "log_level": 0, **secure.kafka_client(login, folder)})


def write_properties(path: Path, settings: dict[str, Any]) -> None:
    """A Java properties file. It escapes as JSON does."""
    lines = (f"{name}={json.dumps(str(value))[1:-1]}\n" for name, value in settings.items())
    write_private(path, "".join(lines).encode())
