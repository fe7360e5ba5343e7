"""What is asked of Kafka's client, and what its errors mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from everlog.config import KAFKA_PASSWORD_VARIABLE, CassandraConfig, Config, JournalConfig, KafkaConfig, LogConfig
from everlog.errors import (
    AccessDenied,
    EverlogError,
    InvalidConfig,
    RecordTooLarge,
    Refused,
    StorageFailed,
    TooFewReplicas,
    TopicMissing,
    Unacknowledged,
    Unreachable,
)
from everlog.log.kafka.client import client_settings, consumer_settings, make_client, producer_settings
from everlog.log.kafka.errors import explain, explain_delivery, is_denied, is_missing, is_silence, kafka_error
from everlog.log.kafka.records import headers_of, split_headers
from everlog.log.kafka.topics import concerns, topic_settings

SERVERS = "kafka:9092"


def config(**kafka) -> Config:
    return Config(kafka=KafkaConfig(**kafka), cassandra=CassandraConfig())


def test_the_producer_stores_each_record_once_on_all_replicas():
    settings = producer_settings(
        Config(
            kafka=KafkaConfig(linger_ms=2.5, max_record_bytes=5_000_000),
            cassandra=CassandraConfig(),
            journal=JournalConfig(append_timeout_s=1.5),
        )
    )
    assert settings["enable.idempotence"] is True
    assert settings["acks"] == "all"
    assert settings["compression.type"] == "lz4"
    assert settings["linger.ms"] == 2.5
    assert settings["message.timeout.ms"] == 1500
    assert settings["message.max.bytes"] == 5_000_000


def test_consumers_decide_nothing_by_themselves():
    settings = consumer_settings(KafkaConfig())
    assert settings["isolation.level"] == "read_uncommitted"
    assert settings["auto.offset.reset"] == "error"
    assert settings["enable.auto.commit"] is False


def test_own_settings_of_the_user_win():
    settings = producer_settings(config(conf={"compression.type": "zstd", "linger.ms": "7", "client.rack": "r1"}))
    assert settings["compression.type"] == "zstd"
    assert settings["linger.ms"] == "7"
    assert settings["client.rack"] == "r1"


@pytest.mark.parametrize(
    ("kafka", "protocol"),
    [
        (KafkaConfig(), "PLAINTEXT"),
        (KafkaConfig(tls=True, ca_file="ca.pem"), "SSL"),
        (KafkaConfig(username="u", password="p"), "SASL_PLAINTEXT"),
        (KafkaConfig(username="u", password="p", tls=True), "SASL_SSL"),
    ],
)
def test_security_follows_from_tls_and_username(kafka, protocol):
    settings = client_settings(kafka)
    assert settings["security.protocol"] == protocol
    assert settings.get("sasl.username") == kafka.username
    assert settings.get("sasl.mechanism") == ("SCRAM-SHA-512" if kafka.username else None)
    assert settings.get("ssl.ca.location") == kafka.ca_file


def test_a_password_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, "secret")
    assert client_settings(KafkaConfig(username="u"))["sasl.password"] == "secret"
    assert client_settings(KafkaConfig(username="u", password="own"))["sasl.password"] == "own"
    assert "sasl.password" not in client_settings(KafkaConfig())


def test_settings_that_the_client_does_not_know_are_named():
    from confluent_kafka import Producer

    with pytest.raises(InvalidConfig, match=r"no\.such\.setting"):
        make_client(Producer, producer_settings(config(conf={"no.such.setting": "1"})))


def test_a_new_topic_gets_what_the_configuration_says():
    kafka = KafkaConfig(min_insync_replicas=2, max_record_bytes=1000)
    made = topic_settings(Config(kafka=kafka, cassandra=CassandraConfig()))
    assert made == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": str(1000 + 64 * 1024),
        "min.insync.replicas": "2",
    }
    log = LogConfig(retention_hours=1.5, retention_bytes=10)
    made = topic_settings(Config(kafka=KafkaConfig(), cassandra=CassandraConfig(), log=log))
    assert (made["retention.ms"], made["retention.bytes"]) == ("5400000", "10")


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (KafkaError._AUTHENTICATION, AccessDenied, "username"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, AccessDenied, "password"),
        (KafkaError._SSL, AccessDenied, "ca_file"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "right"),
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLarge, "max_record_bytes"),
        (KafkaError.NOT_ENOUGH_REPLICAS, TooFewReplicas, "brokers"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing, "restore"),
        (KafkaError.INVALID_REPLICATION_FACTOR, InvalidConfig, r"\[kafka\]"),
        (KafkaError.INVALID_TIMESTAMP, Refused, "clock"),
        (KafkaError._ALL_BROKERS_DOWN, Unreachable, SERVERS),
        (KafkaError._TIMED_OUT, Unreachable, SERVERS),
        (KafkaError._DESTROY_BROKER, Unreachable, SERVERS),
        (KafkaError.UNKNOWN, StorageFailed, SERVERS),
    ],
)
def test_errors_are_named_and_say_what_to_do(code, kind, remedy):
    found = explain(KafkaError(code), "the topic t", SERVERS)
    assert type(found) is kind
    with pytest.raises(EverlogError, match=remedy):
        raise found


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN,
        KafkaError.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_record_that_may_be_stored_is_unacknowledged(code):
    assert type(explain_delivery(KafkaError(code), "t/0", SERVERS, lost=False)) is Unacknowledged


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLarge),
        (KafkaError.NOT_ENOUGH_REPLICAS, TooFewReplicas),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.INVALID_TIMESTAMP, Refused),
    ],
)
def test_a_refusal_is_final_unless_a_connection_was_lost_meanwhile(code, kind):
    """Then an earlier try of the same record may have been stored."""
    assert type(explain_delivery(KafkaError(code), "t/0", SERVERS, lost=False)) is kind
    assert type(explain_delivery(KafkaError(code), "t/0", SERVERS, lost=True)) is Unacknowledged


def test_errors_are_sorted_by_what_helps():
    assert is_silence(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    assert is_missing(KafkaError(KafkaError._UNKNOWN_PARTITION))
    assert is_denied(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
    assert kafka_error(ValueError("odd")).str() == "odd"


def test_the_action_is_the_first_header():
    assert headers_of(b"{}", (("a", b"1"),)) == [("journal.action", b"{}"), ("a", b"1")]
    assert headers_of(b"{}", ()) == [("journal.action", b"{}")]
    assert headers_of(None, (("a", b"1"),)) == [("a", b"1")]
    assert headers_of(None, ()) is None


def test_the_first_action_wins_and_a_missing_value_is_empty():
    found = [("x", None), ("journal.action", b"1"), ("y", b"2"), ("journal.action", b"3"), ("y", b"4")]
    assert split_headers(found) == (b"1", (("x", b""), ("y", b"2"), ("y", b"4")))
    assert split_headers([("journal.action", None)]) == (b"", ())
    assert split_headers([("x", b"1")]) == (None, (("x", b"1"),))


def described(copies: int) -> Any:
    return SimpleNamespace(partitions=[SimpleNamespace(replicas=list(range(copies)))])


@pytest.mark.parametrize(
    ("copies", "brokers", "settings", "said"),
    [
        (3, 3, {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}, []),
        (2, 3, {"min.insync.replicas": "2"}, ["it has 2 of 3 copies"]),
        (3, 3, {"min.insync.replicas": "1"}, ["min.insync.replicas is 1"]),
        (3, 3, {"min.insync.replicas": "2", "cleanup.policy": "compact,delete"}, ["cleanup.policy is compact,delete"]),
        (3, 3, {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}, ["unclean.leader.election"]),
        (3, 3, None, ["its settings cannot be seen"]),
        (1, 1, {"min.insync.replicas": "1"}, ["there is one broker only"]),
    ],
)
def test_what_a_topic_lacks_is_said(copies, brokers, settings, said) -> None:
    found = concerns(described(copies), settings, brokers)
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))
