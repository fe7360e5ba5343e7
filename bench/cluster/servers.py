"""Kafka and Cassandra to measure on: started for the run, or given; and what the run makes there."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

from bench.cluster.processor import CASSANDRA, KAFKA, Processor, command, opened
from everlog.cassandra.connection import contact_points
from everlog.cassandra.session import connect
from everlog.config import Config, JournalConfig, PipelineConfig, load_config
from everlog.errors import EverlogError
from everlog.log.kafka.client import admin_settings

logger = logging.getLogger("bench")

TOPIC = "orders"
# What decides how quick a node is.
NODE_SETTINGS = (
    "commitlog_sync",
    "commitlog_sync_period",
    "commitlog_compression",
    "concurrent_writes",
    "concurrent_reads",
    "memtable_heap_space",
    "memtable_offheap_space",
    "native_transport_max_threads",
    "sstable_selected_format",
    "storage_compatibility_mode",
    "disk_access_mode",
)


class Servers:
    """Where to measure. Every measurement gets a keyspace and a topic prefix of its own."""

    def __init__(self, file: Path, folder: Path, *, keep: bool) -> None:
        config = load_config(file)
        assert config.kafka is not None
        assert config.cassandra is not None
        self.file = file.resolve()
        self.config = config
        self.given = {"log": msgspec.to_builtins(config.log), "spark": msgspec.to_builtins(config.spark)}
        self._folder = folder
        self._keep = keep
        brokers = config.kafka.bootstrap_servers.split(",")
        self.processor = Processor(
            {int(broker.rpartition(":")[2]) for broker in brokers}, {contact_points(config.cassandra.contact_points)[1]}
        )

    @contextmanager
    def fresh(self, name: str, **pipeline: Any) -> Iterator[Config]:
        """A configuration with nothing behind it yet; what comes to be is removed at the end, unless it is kept."""
        unique = f"bench_{name}_{secrets.token_hex(3)}"
        assert self.config.cassandra is not None
        config = msgspec.structs.replace(
            self.config,
            data=str(self._folder / unique),
            journal=JournalConfig(topic_prefix=f"{unique}-"),
            pipeline=PipelineConfig(**pipeline),
            cassandra=msgspec.structs.replace(self.config.cassandra, keyspace=unique),
        )
        try:
            yield config
        finally:
            if not self._keep:
                self._remove(config)

    def _remove(self, config: Config) -> None:
        """Nothing is worth losing a measurement that is done already."""
        try:
            self._remove_topics(config)
            asyncio.run(_drop_keyspace(config))
        except (EverlogError, KafkaException) as error:
            logger.warning("%s could not be removed: %s", config.journal.topic_prefix, error)

    def _remove_topics(self, config: Config) -> None:
        admin = admin_client(config)
        names = [name for name in admin.list_topics(timeout=10).topics if config.journal.includes(name)]
        for removed in admin.delete_topics(names).values() if names else ():
            removed.result()

    def describe(self) -> dict[str, Any]:
        """Versions and settings of the servers."""
        kafka, cassandra = (self._process(who) for who in (KAFKA, CASSANDRA))
        kafka["version"] = self._jar(KAFKA, r"/kafka_2\.13-([\d.]+)\.jar$")
        return {
            "kafka": kafka | {"settings": broker_settings(self.config)},
            "cassandra": cassandra | asyncio.run(_node(self.config)),
        }

    def _process(self, who: str) -> dict[str, Any]:
        """How its Java runs, if it runs here."""
        pids = sorted(self.processor.servers[who])
        words = command(pids[0]) if pids else []
        return {"processes": len(pids), "java": [word for word in words if word.startswith("-X")]}

    def _jar(self, who: str, pattern: str) -> str | None:
        files = (name for pid in self.processor.servers[who] for name in opened(pid))
        return next((found[1] for name in files if (found := re.search(pattern, name))), None)


@contextmanager
def servers(given: Path | None, folder: Path, *, keep: bool) -> Iterator[Servers]:
    """Those that a configuration names, or new ones in the folder, which end with this."""
    if given is not None:
        yield Servers(given, folder, keep=keep)
        return
    from everlog.cluster.local import LocalCluster

    local = LocalCluster(folder / "cluster")
    try:
        local.up()
        yield Servers(local.config_file, folder, keep=keep)
    finally:
        if keep:
            logger.warning("the servers go on: 'everlog cluster down --folder %s' stops them", local.folder)
        else:
            local.down()


def admin_client(config: Config) -> AdminClient:
    """For topics, with Everlog's own connection."""
    assert config.kafka is not None
    return AdminClient(admin_settings(config.kafka))


def broker_settings(config: Config) -> dict[str, str]:
    """What a broker was told; its defaults are left out."""
    admin = admin_client(config)
    broker = min(admin.list_topics(timeout=10).brokers)
    (answer,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(broker))]).values()
    # The client leaves the source a plain number.
    given = (found for found in answer.result().values() if found.source != ConfigSource.DEFAULT_CONFIG.value)
    return {found.name: found.value for found in given if not found.is_sensitive}


async def _node(config: Config) -> dict[str, Any]:
    assert config.cassandra is not None
    session = await connect(config.cassandra)
    try:
        ((version,),) = await session.fetch("SELECT release_version FROM system.local")
        found: dict[str, str] = dict(await session.fetch("SELECT name, value FROM system_views.settings"))
    finally:
        await session.close()
    return {"version": version, "settings": {name: found[name] for name in NODE_SETTINGS if name in found}}


async def _drop_keyspace(config: Config) -> None:
    assert config.cassandra is not None
    session = await connect(config.cassandra)
    try:
        await session.change_schema(f"DROP KEYSPACE IF EXISTS {config.cassandra.keyspace}")
    finally:
        await session.close()
