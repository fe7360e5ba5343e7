"""A worker process of Spark: its configuration, its memory, and the one event loop that its tasks share."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from everlog.config import CASSANDRA_PASSWORD_VARIABLE, KAFKA_PASSWORD_VARIABLE, Config, KafkaConfig
from everlog.errors import InvalidConfig

T = TypeVar("T")

_runner: asyncio.Runner | None = None
_settled = False


def for_tasks(config: Config) -> Config:
    """The configuration as it travels to the workers, which have neither this process's environment nor, on other
    machines, its files: what Kafka's client needs of them goes along as text."""
    kafka, cassandra = config.kafka, config.cassandra
    if kafka is not None:
        if kafka.username is not None and kafka.password is None:
            kafka = msgspec.structs.replace(kafka, password=os.environ.get(KAFKA_PASSWORD_VARIABLE))
        kafka = with_certificates(kafka)
    if cassandra is not None and cassandra.username is not None and cassandra.password is None:
        cassandra = msgspec.structs.replace(cassandra, password=os.environ.get(CASSANDRA_PASSWORD_VARIABLE))
    return msgspec.structs.replace(config, kafka=kafka, cassandra=cassandra)


def with_certificates(kafka: KafkaConfig) -> KafkaConfig:
    """The same settings with the text of certificates and keys in the place of their files."""
    texts = {
        f"ssl.{name}.pem": _text_of(f"{setting}_file", path)
        for name, setting in (("ca", "ca"), ("certificate", "cert"), ("key", "key"))
        if (path := getattr(kafka, f"{setting}_file")) is not None
    }
    if not texts:
        return kafka
    conf = {**texts, **kafka.conf}
    return msgspec.structs.replace(kafka, ca_file=None, cert_file=None, key_file=None, conf=conf)


def _text_of(setting: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidConfig(f"[kafka] {setting} = {path!r} cannot be read: {error.strerror}") from error


def settle_process() -> None:
    """Once per worker: no garbage collection of our own, nothing here makes cycles. Spark collects after every task;
    what the imports made is kept out of its way."""
    global _settled  # noqa: PLW0603
    if not _settled:
        gc.collect()
        gc.freeze()
        gc.disable()
        _settled = True


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the process's one event loop, which is kept over tasks: a store's connections belong to it."""
    global _runner  # noqa: PLW0603
    if _runner is None:
        _runner = asyncio.Runner()
    return _runner.run(work)
