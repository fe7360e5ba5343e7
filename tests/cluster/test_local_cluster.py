"""`everlog cluster`: real servers that come up, survive, come back with their data, and go without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from everlog.cluster import java
from everlog.cluster.cql import Cql, CqlError
from everlog.cluster.local import LocalCluster
from everlog.cluster.secure import client_context
from everlog.cluster.state import Login
from everlog.config import CassandraConfig, KafkaConfig, load_config
from everlog.errors import MissingProgram, PortTaken, ServerFailed
from tests.cli_support import Cli
from tests.fixtures.servers import guarded, require_servers, running

pytestmark = pytest.mark.cluster

# As large as a record may be by default.
LARGEST = b"x" * (4 * 1024 * 1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A cluster of these tests' own, because they kill it."""
    require_servers()
    path = tmp_path_factory.mktemp("local") / "my clüster"
    with guarded(LocalCluster(path)):
        yield path


@pytest.fixture
def local(folder) -> LocalCluster:
    """All of it serves when a test begins, whatever the one before did to it."""
    found = LocalCluster(folder)
    found.up()
    return found


@pytest.fixture
def stopped(folder) -> LocalCluster:
    """The same, made and then stopped."""
    found = LocalCluster(folder)
    if not found.config_file.exists():
        found.up()
    found.down()
    return found


def kafka_settings(config: KafkaConfig, **others: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap.servers": config.bootstrap_servers, "log_level": 0}
    if config.tls:
        settings |= {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": config.ca_file,
            "sasl.mechanism": config.mechanism,
            "sasl.username": config.username,
            "sasl.password": config.password,
        }
    return settings | others


def make_topic(config: KafkaConfig, name: str) -> dict[str, str]:
    """A topic with as many copies as the configuration says; its settings."""
    admin = AdminClient(kafka_settings(config))
    admin.create_topics([NewTopic(name, 1, config.replication_factor)])[name].result()
    deadline = time.monotonic() + 30
    while True:
        (answer,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        try:
            return {key: entry.value for key, entry in answer.result().items()}
        except KafkaException as error:
            # Not every broker knows it at once.
            missing = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not missing or time.monotonic() > deadline:
                raise


def produce(config: KafkaConfig, topic: str, value: bytes) -> int:
    """Write a record to all in-sync copies; its offset."""
    outcomes: list[tuple[Any, int]] = []
    producer = Producer(kafka_settings(config, acks="all", **{"message.max.bytes": len(LARGEST) + 65536}))
    producer.produce(
        topic, value, key=b"k", on_delivery=lambda error, record: outcomes.append((error, record.offset()))
    )
    producer.flush(60)
    ((error, offset),) = outcomes
    assert error is None
    return offset


def consume(config: KafkaConfig, topic: str, offset: int) -> bytes:
    consumer = Consumer(kafka_settings(config, **{"group.id": "test", "enable.auto.commit": False}))
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        record = consumer.poll(60)
        assert record is not None
        assert record.error() is None
        return bytes(record.value())
    finally:
        consumer.close()


def cql(config: CassandraConfig, *, node: int = 0, password: str | None = None, user: str | None = None) -> Cql:
    host, port = config.contact_points[node].split(":")
    if config.ca_file is None:
        return Cql(host, int(port))
    login = Login(user or config.username or "", password or config.password or "")
    return Cql(host, int(port), login=login, tls=client_context(Path(config.ca_file).parents[1]))


def make_table(config: CassandraConfig, keyspace: str) -> None:
    strategy = f"{{'class': 'SimpleStrategy', 'replication_factor': {config.replication_factor}}}"
    with cql(config) as session:
        session.query(f"CREATE KEYSPACE {keyspace} WITH replication = {strategy}")
        session.query(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY)")
    for node in range(len(config.contact_points)):
        ask_soon(config, node, f"SELECT id FROM {keyspace}.t WHERE id = 0")


def ask_soon(config: CassandraConfig, node: int, statement: str, *, replicas: int = 1) -> None:
    """Ask until there is an answer.

    A node hears a little late of a table that another one made. When one comes back, the others take it for dead for a
    moment once they hear that it is not the process they knew; a quorum is there all the time.
    """
    end = time.monotonic() + 60
    while True:
        try:
            with cql(config, node=node) as session:
                return session.query(statement, replicas=replicas)
        except CqlError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def test_the_command_brings_up_real_servers_that_outlive_it(folder):
    command = [sys.executable, "-m", "everlog.cli", "cluster", "up", "--folder", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [(one["name"], one["running"]) for one in answer["servers"]] == [("kafka-1", True), ("cassandra-1", True)]
    config = load_config(answer["config"])
    assert config.kafka is not None
    assert config.cassandra is not None
    settings = make_topic(config.kafka, "large")
    assert int(settings["max.message.bytes"]) >= len(LARGEST) + 65536
    offset = produce(config.kafka, "large", LARGEST)
    assert consume(config.kafka, "large", offset) == LARGEST
    make_table(config.cassandra, "first")
    missing = (
        AdminClient(kafka_settings(config.kafka)).list_topics("nobody-made-it", timeout=60).topics["nobody-made-it"]
    )
    assert missing.error is not None, "a typo must not make a topic"


def test_a_second_up_changes_nothing(local):
    before = [(server.name, server.pid) for server in local.status()]
    edited = local.config_file.read_text() + "\n[pipeline]\nmax_cycle_records = 7\n"
    local.config_file.write_text(edited)
    config = LocalCluster(local.folder, nodes=1, secure=False).up()
    assert config.pipeline.max_cycle_records == 7
    assert local.config_file.read_text() == edited
    assert [(server.name, server.pid) for server in local.status()] == before


def test_killed_servers_are_missed_and_come_back_with_their_data(local):
    config = load_config(local.config_file)
    assert config.kafka is not None
    assert config.cassandra is not None
    make_topic(config.kafka, "kept")
    offset = produce(config.kafka, "kept", b"precious")
    make_table(config.cassandra, "kept")
    addresses = [server.address for server in local.status()]
    for server in local.servers():
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.process.wait_until_gone(30)
    page = Cli(local.folder).out("cluster", "status", "--folder", str(local.folder))
    assert page.count("not running") == 2
    assert [(one.running, one.pid, one.memory) for one in local.status()] == [(False, None, None)] * 2
    local.up()
    assert [server.address for server in local.status()] == addresses
    assert consume(config.kafka, "kept", offset) == b"precious"
    with cql(config.cassandra) as session:
        session.query("SELECT id FROM kept.t WHERE id = 1")


def test_logs_are_readable(local):
    cli = Cli(local.folder)
    text = cli.out("cluster", "logs", "cassandra-1", "--lines", "3", "--folder", str(local.folder))
    assert len(text.splitlines()) == 3
    assert "DEBUG" not in "\n".join(local.logs("cassandra-1", 100_000))
    both = cli.lines("cluster", "logs", "--folder", str(local.folder))
    assert {line["server"] for line in both} == {"kafka-1", "cassandra-1"}
    error = cli.error("cluster", "logs", "kafka-9", "--folder", str(local.folder), code=2)
    assert "kafka-1, cassandra-1" in error["message"]


def test_another_shape_is_refused(local):
    error = Cli(local.folder).error("cluster", "up", "--nodes", "3", "--folder", str(local.folder), code=2)
    assert "nodes=1" in error["message"]
    assert "--wipe" in error["message"]


def test_a_taken_port_is_named_and_nothing_is_left_running(stopped):
    host, port = stopped.server("cassandra-1").address.split(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(PortTaken, match=f"cassandra-1 cannot listen at {host}:{port}"):
            stopped.up()
    assert [server.running for server in stopped.status()] == [False, False]


def test_a_server_that_does_not_start_shows_what_it_wrote(stopped):
    damaged = stopped.folder / "kafka-1" / "data" / "meta.properties"
    whole = damaged.read_text()
    damaged.write_text(whole.replace("node.id=1", "node.id=77"))
    try:
        with pytest.raises(ServerFailed, match=r"kafka-1 ended .*Stored node id 77 doesn't match") as caught:
            stopped.up()
    finally:
        damaged.write_text(whole)
    assert caught.value.log == str(stopped.folder / "kafka-1" / "server.log")
    assert [server.running for server in stopped.status()] == [False, False]


def test_without_a_java_for_cassandra_kafka_starts_and_the_error_says_what_is_needed(stopped, tmp_path, monkeypatch):
    """The Java here says of itself that it is newer than it is."""
    real = java.find_java("Kafka", range(17, 100)).program
    newer = tmp_path / "jdk" / "bin" / "java"
    newer.parent.mkdir(parents=True)
    newer.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21.0.1"\' && exit\nexec "{real}" "$@"\n'
    )
    newer.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("EVERLOG_CASSANDRA_JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "INSTALLED", tmp_path / "none")
    with pytest.raises(MissingProgram, match=r"Kafka runs at 127\.0\.0\.1:.*Cassandra needs Java 17 or 11") as caught:
        stopped.up()
    assert "EVERLOG_CASSANDRA_JAVA_HOME" in str(caught.value)
    assert [server.running for server in stopped.status()] == [True, False]


def test_down_leaves_no_process_and_a_wipe_leaves_no_file_of_ours(local):
    theirs = local.folder / "notes.txt"
    theirs.write_text("not ours")
    cli = Cli(local.folder)
    pids = [server.pid for server in local.status()]
    assert cli.json("cluster", "down", "--folder", str(local.folder)) == {"stopped": 2, "wiped": False}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert (local.folder / "kafka-1" / "data").is_dir()
    assert cli.json("cluster", "down", "--wipe", "--folder", str(local.folder)) == {"stopped": 0, "wiped": True}
    assert list(local.folder.iterdir()) == [theirs]
    cli.run("cluster", "status", "--folder", str(local.folder), code=4)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_three_nodes_go_on_without_one_of_each(tmp_path):
    with running(tmp_path / "three", nodes=3) as local:
        config = load_config(local.config_file)
        assert config.kafka is not None
        assert config.cassandra is not None
        assert len(local.status()) == 6
        assert [point.split(":")[0] for point in config.cassandra.contact_points] == [f"127.0.0.{n}" for n in (1, 2, 3)]
        assert make_topic(config.kafka, "copies")["min.insync.replicas"] == "2"
        make_table(config.cassandra, "copies")
        for name in ("kafka-2", "cassandra-1"):
            local.server(name).process.kill()
        offset = produce(config.kafka, "copies", b"two of three")
        with cql(config.cassandra, node=1) as session:
            session.query("INSERT INTO copies.t (id) VALUES (1)", replicas=2)
        local.up()
        assert all(server.running for server in local.status())
        assert consume(config.kafka, "copies", offset) == b"two of three"
        for node in range(3):
            ask_soon(config.cassandra, node, "SELECT id FROM copies.t WHERE id = 1", replicas=2)
            ask_soon(config.cassandra, node, "SELECT id FROM copies.t WHERE id = 1", replicas=3)
        local.down()
        local.up()
        assert consume(config.kafka, "copies", offset) == b"two of three"


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_secure_cluster_lets_in_whom_it_should_and_nobody_else(tmp_path):
    with running(tmp_path / "secure", nodes=2, secure=True) as local:
        config = load_config(local.config_file)
        kafka, cassandra = config.kafka, config.cassandra
        assert kafka is not None
        assert cassandra is not None
        for path in (local.config_file, local.folder / "cluster.json", *local.folder.glob("*/server.properties")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

        make_topic(kafka, "secret")
        assert consume(kafka, "secret", produce(kafka, "secret", b"told")) == b"told"
        open_to_all = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        for settings in (kafka_settings(kafka, **{"sasl.password": "wrong"}), open_to_all):
            with pytest.raises(KafkaException):
                AdminClient(settings).list_topics(timeout=5)

        make_table(cassandra, "secret")
        for user, password in (("everlog", "wrong"), ("cassandra", "cassandra"), ("nobody", "nothing")):
            with pytest.raises(CqlError) as refused:
                cql(cassandra, user=user, password=password)
            assert refused.value.bad_credentials
        with cql(cassandra) as session:
            for statement in ("CREATE ROLE intruder", "SELECT role FROM system_auth.roles"):
                with pytest.raises(CqlError):
                    session.query(statement)
        host, port = cassandra.contact_points[0].split(":")
        with pytest.raises(OSError):  # the right password, but for everybody to hear
            Cql(host, int(port), login=Login(cassandra.username or "", cassandra.password or ""))

        before = [server.pid for server in local.status()]
        assert LocalCluster(local.folder).up() == config
        assert [server.pid for server in local.status()] == before
