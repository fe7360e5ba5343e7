"""Kafka's clients: every setting and why it is not the library's own, making a client, and stopping its thread."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from everlog.config import KAFKA_PASSWORD_VARIABLE, Config, KafkaConfig
from everlog.errors import InvalidConfig
from everlog.log.kafka.errors import kafka_error

logger = logging.getLogger("everlog.log.kafka")

CLIENT_ID = "everlog"
# Consumers here are told what to read; the name of a group is needed by the library, and nothing is kept under it.
GROUP = "everlog"

# Appends that wait for an answer; beyond these bounds the next append waits for room.
MAX_QUEUED_RECORDS = 20_000
MAX_QUEUED_KIB = 64 * 1024
# What a consumer may hold before it is asked for it.
MAX_FETCHED_KIB = 16 * 1024

ClientSettings = dict[str, Any]
Client = TypeVar("Client")


def client_settings(kafka: KafkaConfig) -> ClientSettings:
    """What every client needs: where the servers are, and who logs in."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "client.id": CLIENT_ID,
        # What goes wrong reaches us as an error; the library need not write about it, too.
        "log_level": 0,
        "topic.metadata.propagation.max.ms": _ms(kafka.request_timeout_s),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        **_security(kafka),
    }


def _protocol(kafka: KafkaConfig) -> str:
    return ("SASL_" if kafka.username is not None else "") + ("SSL" if kafka.tls else "PLAINTEXT")


def _password(kafka: KafkaConfig) -> str:
    return kafka.password or os.environ.get(KAFKA_PASSWORD_VARIABLE, "")


def _security(kafka: KafkaConfig) -> ClientSettings:
    found: ClientSettings = {"security.protocol": _protocol(kafka)}
    if kafka.username is not None:
        found["sasl.mechanism"] = kafka.mechanism
        found["sasl.username"] = kafka.username
        found["sasl.password"] = _password(kafka)
    files = {
        "ssl.ca.location": kafka.ca_file,
        "ssl.certificate.location": kafka.cert_file,
        "ssl.key.location": kafka.key_file,
    }
    return found | {name: file for name, file in files.items() if file is not None}


def admin_settings(kafka: KafkaConfig) -> ClientSettings:
    """For topics."""
    return client_settings(kafka) | kafka.conf


def producer_settings(config: Config) -> ClientSettings:
    """One record is stored once, in order, on all replicas that are in sync, or its outcome is unknown."""
    kafka = config.kafka
    assert kafka is not None
    return {
        **client_settings(kafka),
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        "linger.ms": kafka.linger_ms,
        "message.timeout.ms": _ms(config.journal.append_timeout_s),
        "message.max.bytes": kafka.max_record_bytes,
        "queue.buffering.max.messages": MAX_QUEUED_RECORDS,
        "queue.buffering.max.kbytes": max(MAX_QUEUED_KIB, 2 * kafka.max_record_bytes // 1024),
        **kafka.conf,
    }


def consumer_settings(kafka: KafkaConfig) -> ClientSettings:
    """A consumer that reads what it is told to, in no group, and never decides by itself where to go on."""
    return {
        **client_settings(kafka),
        "group.id": GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        # As Spark's reader does; the library's own default differs.
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        # A new place to read from has to wait until the request before it is answered.
        "fetch.wait.max.ms": 10,
        "fetch.min.bytes": 1,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": MAX_FETCHED_KIB,
        "max.poll.interval.ms": 86_400_000,
        **kafka.conf,
    }


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def make_client(kind: Callable[[ClientSettings], Client], settings: ClientSettings) -> Client:
    """A client; InvalidConfig if the library does not take the settings."""
    try:
        return kind({**settings, "logger": logger})
    except (KafkaException, ValueError, TypeError) as error:
        raise InvalidConfig(
            f"Kafka's client does not take the settings: {kafka_error(error).str()}: check [kafka] and its conf"
        ) from error


async def join(thread: threading.Thread) -> None:
    """Wait for a thread that was told to stop."""
    await asyncio.to_thread(thread.join)
