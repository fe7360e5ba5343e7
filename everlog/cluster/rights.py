"""Who may do what on a secure cluster: granted once, when it is new. Doing it again changes nothing."""

from __future__ import annotations

from pathlib import Path

from everlog.cluster.cassandra import CassandraNode
from everlog.cluster.cql import CqlError
from everlog.cluster.kafka import Broker, admin_client
from everlog.cluster.state import Logins, ServerState
from everlog.errors import ClusterFailed
from everlog.runtime.statements import load_statements


def grant(state: ServerState, brokers: list[Broker], nodes: list[CassandraNode], folder: Path) -> None:
    """Let the application work with any topic and any keyspace; nothing to do on a cluster that is open to all."""
    if state.logins is not None:
        _grant_on_kafka(state, state.logins, brokers[0], folder)
        _grant_on_cassandra(state, state.logins, nodes[0])


def _grant_on_kafka(state: ServerState, logins: Logins, broker: Broker, folder: Path) -> None:
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
    admin = admin_client(state, broker.address, folder)
    try:
        for answer in admin.create_acls(rules, request_timeout=30).values():
            answer.result()
    except KafkaException as error:
        raise ClusterFailed(f"{broker.name} did not take the application's rights: {error}: try again") from error


def _grant_on_cassandra(state: ServerState, logins: Logins, node: CassandraNode) -> None:
    """The super user that every Cassandra begins with makes ours, which then shuts it out."""
    statements = load_statements("everlog.cluster", "rights.cql")
    replicas = min(3, state.nodes)
    try:
        with node.connect() as first:
            for name in ("keep_roles_on_all", "create_admin"):
                first.query(statements[name].format(replicas=replicas, login=logins.admin))
        with node.connect(logins.admin) as admin:
            for name in ("create_application", "grant_application", "shut_out_default"):
                admin.query(statements[name].format(login=logins.application))
    except (OSError, CqlError) as error:
        raise ClusterFailed(f"{node.name} did not take the roles: {error}: try again") from error
