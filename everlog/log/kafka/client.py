"""Kafka's clients: every setting and why it is not the library's own, making a client, and stopping its thread.

The pipeline's client is a Java one. Its certificates and keys travel as text, not as paths, so that executors on other
machines need no files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
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

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

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


def java_settings(config: KafkaConfig) -> dict[str, str]:
    """The settings with which a Java client connects.

    >>> java_settings(KafkaConfig(tls=True))["security.protocol"]
    'SSL'
    """
    settings = {"bootstrap.servers": config.bootstrap_servers, "security.protocol": _protocol(config)}
    if config.username is not None:
        settings |= {"sasl.mechanism": config.mechanism, "sasl.jaas.config": _java_login(config)}
    if config.tls:
        settings |= _java_tls(config)
    return settings


def _java_login(config: KafkaConfig) -> str:
    user, password = _quoted(config.username or ""), _quoted(_password(config))
    return f"{_LOGIN_MODULES[config.mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _java_tls(config: KafkaConfig) -> dict[str, str]:
    settings: dict[str, str] = {}
    if config.ca_file is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem("ca_file", config.ca_file)}
    if config.cert_file is not None and config.key_file is not None:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _pem("cert_file", config.cert_file),
            "ssl.keystore.key": _pem("key_file", config.key_file),
        }
    return settings


def _pem(setting: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidConfig(f"[kafka] {setting} = {path!r} cannot be read: {error.strerror}") from error


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
