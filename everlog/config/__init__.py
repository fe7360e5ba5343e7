"""The one configuration: a TOML file, or the defaults for a bare folder.

Every setting stands here with its default; an unknown one is an error, not a silent typo.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from everlog.config.numbers import Positive, Seconds
from everlog.config.pekko import PekkoConfig as PekkoConfig
from everlog.config.private import make_folder
from everlog.config.queue_options import QueueOptions
from everlog.config.scopes import scopes_of
from everlog.core.buckets import bucket_size
from everlog.core.values import DEFAULT_SEGMENT_SIZE, MAX_VALUE_BYTES, MIN_SEGMENT_SIZE
from everlog.errors import InvalidConfig, NotWritable

CONFIG_FILE = "everlog.toml"
KAFKA_PASSWORD_VARIABLE = "EVERLOG_KAFKA_PASSWORD"  # noqa: S105
CASSANDRA_PASSWORD_VARIABLE = "EVERLOG_CASSANDRA_PASSWORD"  # noqa: S105

# Topics whose names begin so are those of Everlog's parts; so is that of the documents' events.
SYSTEM_PREFIX = "everlog."

# What an event of a document may have besides the body: paths, ids, and the form of the record.
ENVELOPE_BYTES = 64 * 1024


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: topics of the log, embedded or on Kafka; `synchronous` is for the embedded one."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    retention_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None
    retention_bytes: Positive | None = None


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[store]`: the embedded store."""

    synchronous: Literal["FULL", "NORMAL"] = "FULL"


class JournalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[journal]`: what appends and reads do."""

    topic_prefix: str = "journal-"
    topics: tuple[str, ...] = ()
    segment_size: Annotated[int, msgspec.Meta(ge=MIN_SEGMENT_SIZE, le=2**31 - 1)] = DEFAULT_SEGMENT_SIZE
    max_append_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE_BYTES)] = 1024 * 1024
    append_timeout_s: Seconds = 30.0
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    max_snapshots: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    max_snapshot_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE_BYTES)] = 1024 * 1024
    max_known_journals: Positive = 10_000
    unique_seq_nrs: bool = True
    correlate_events: bool = True

    def __post_init__(self) -> None:
        if not self.topic_prefix and not self.topics:
            raise ValueError("an empty topic_prefix needs `topics`, a list of the log's topics that are journals")

    def includes(self, log_name: str) -> bool:
        """Whether a topic of the log holds journals."""
        return log_name.startswith(self.topic_prefix) and (not self.topics or log_name in self.topics)

    def short(self, log_name: str) -> str:
        """The name that people use for a topic of the log."""
        return log_name.removeprefix(self.topic_prefix)


OnDelete = Literal["keep", "propagate"]


class TagsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tags]`: views by tag. `slices` and `on_delete` are for topics that do not say otherwise."""

    enabled: bool = True
    bucket: str = "hour"
    shards: dict[str, Annotated[int, msgspec.Meta(ge=2, le=1024)]] = {}
    slices: bool = False
    on_delete: OnDelete = "keep"
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 500
    poll_interval_s: Seconds = 0.02
    token_timeout_s: Seconds = 30.0
    max_retries: Annotated[int, msgspec.Meta(ge=0)] = 100
    min_retry_s: Seconds = 0.1
    max_retry_s: Seconds = 5.0

    def __post_init__(self) -> None:
        bucket_size(self.bucket)

    @property
    def bucket_ms(self) -> int:
        return bucket_size(self.bucket)


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[topics.NAME]`: what one topic does differently from `[tags]`."""

    slices: bool | None = None
    on_delete: OnDelete | None = None


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[pipeline]`: how the log is folded into the tables."""

    max_cycle_records: Positive = 200_000
    poll_interval_s: Seconds = 0.01
    min_retry_s: Seconds = 0.5
    max_retry_s: Seconds = 30.0
    expire_interval_s: Seconds = 3600.0
    marker_days: Annotated[int, msgspec.Meta(ge=10)] = 10


class ProjectionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[projections]`: how instances share the work, and how long a handler may take."""

    lease_s: Seconds = 5.0
    poll_interval_s: Seconds = 0.1
    handler_timeout_s: Seconds = 300.0
    app: str | None = None


class SparkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[spark]`: the session; `conf` takes any `spark.*` setting."""

    master: str = "local[*]"
    memory: str = "1g"
    conf: dict[str, str] = {}


class KafkaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[kafka]`: the log on Kafka. Without a `password` here, EVERLOG_KAFKA_PASSWORD is asked."""

    bootstrap_servers: str = "127.0.0.1:9092"
    replication_factor: Positive | None = None
    min_insync_replicas: Positive | None = None
    max_record_bytes: Positive = 4 * 1024 * 1024
    linger_ms: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    request_timeout_s: Seconds = 10.0
    max_tail_records: Positive = 200_000
    max_tail_bytes: Positive = 64 * 1024 * 1024
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = None
    conf: dict[str, str] = {}


class CassandraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[cassandra]`: the store on Cassandra. Without a `password` here, EVERLOG_CASSANDRA_PASSWORD is asked."""

    contact_points: tuple[str, ...] = ("127.0.0.1:9042",)
    local_datacenter: str | None = None
    keyspace: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z][a-zA-Z0-9_]{0,47}$")] = "everlog"
    replication_strategy: Literal["SimpleStrategy", "NetworkTopologyStrategy"] = "SimpleStrategy"
    replication_factor: Positive = 1
    create_schema: bool = True
    consistency: Literal["ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"] = "LOCAL_QUORUM"
    reconnect_on_init: bool = False
    connect_timeout_s: Seconds = 5.0
    request_timeout_s: Seconds = 10.0
    max_retries: Positive = 5
    max_requests: Annotated[int, msgspec.Meta(ge=1, le=2048)] = 256
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    username: str | None = None
    password: str | None = None


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[queue]`: all work queues, and the workers of `everlog work`. Options of one queue: `[queues.NAME]`."""

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    poll_interval_s: Seconds = 5.0
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    host: str = "127.0.0.1"
    webhook: Annotated[str, msgspec.Meta(pattern="^https?://")] | None = None


class DocumentsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[documents]`: documents and collections. Times in seconds."""

    topic: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9._-]{1,200}$")] = "documents"
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1, le=8 * 1024 * 1024)] = 1024 * 1024
    page_size: Positive = 100
    max_page_size: Positive = 10_000
    max_skip: Positive = 10_000
    max_query_requests: Positive = 20
    max_query_bytes: Positive = 64 * 1024 * 1024
    max_query_steps: Positive = 20_000_000
    max_element_steps: Positive = 1_000_000
    max_element_bytes: Positive = 4 * 1024 * 1024
    request_timeout_s: Seconds = 15.0
    max_pending: Positive = 500
    max_messages: Positive = 10_000
    max_operations: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    max_batch_bytes: Annotated[int, msgspec.Meta(ge=1, le=8 * 1024 * 1024)] = 4 * 1024 * 1024
    max_completers: Positive = 16
    max_workers: Positive = 1024
    max_waiting: Positive = 4096
    index_step: Positive = 256
    index_spark_above: Annotated[int, msgspec.Meta(ge=0)] = 0
    fail_timeout_s: Seconds = 180.0
    hot_recovery_s: Seconds = 1800.0
    expiry_interval_s: Seconds = 1.0
    hot_recovery_interval_s: Seconds = 15.0
    stale_recovery_s: Seconds = 86_400.0
    stale_recovery_interval_s: Seconds = 180.0
    transaction_days: Annotated[float, msgspec.Meta(gt=1)] = 7.0
    feed_poll_interval_s: Seconds = 0.5
    feed_checkpoint_interval_s: Seconds = 10.0
    max_history: Positive = 10_000
    max_live_elements: Positive = 100_000
    routing: bool = True
    node_address: str | None = None
    node_lease_s: Seconds = 10.0
    node_sync_interval_s: Seconds = 1.0
    shutdown_timeout_s: Seconds = 30.0

    @property
    def max_event_bytes(self) -> int:
        """The largest event: a body, and what stands around it."""
        return self.max_body_bytes + ENVELOPE_BYTES

    def __post_init__(self) -> None:
        if not self.fail_timeout_s < self.hot_recovery_s < self.stale_recovery_s:
            raise ValueError("[documents] needs fail_timeout_s < hot_recovery_s < stale_recovery_s")
        if self.transaction_days * 86_400 <= self.stale_recovery_s:
            raise ValueError("[documents] transaction_days must be longer than stale_recovery_s")
        if self.node_lease_s < 3 * self.node_sync_interval_s:
            raise ValueError("[documents] node_lease_s must be at least three times node_sync_interval_s")


class TokenConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[server.tokens]]`: who may do what. `everlog token new --toml` prints such an entry; the token is not in it."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")]
    hash: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    scopes: tuple[str, ...] = ("read",)
    created_ms: int = 0

    def __post_init__(self) -> None:
        scopes_of(self.scopes)


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[server]`: where the server listens, whom it lets in, and how long it waits for a client."""

    host: str = "127.0.0.1"
    cluster_token: Annotated[str, msgspec.Meta(min_length=16)] | None = None
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8080
    cert_file: str | None = None
    key_file: str | None = None
    tokens: tuple[TokenConfig, ...] = ()
    tokens_file: str = "tokens.json"
    anonymous: bool = False
    writable: bool = False
    session_hours: Annotated[float, msgspec.Meta(gt=0, le=8760)] = 12.0
    max_connections: Positive = 1000
    max_header_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1024 * 1024)] = 16 * 1024
    header_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 15.0
    send_timeout_s: Seconds = 30.0
    checkpoint_interval_s: Annotated[float, msgspec.Meta(gt=0, le=10)] = 5.0

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("[server] cert_file and key_file go together")


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings. `data` is the folder of the embedded log and store.

    With `[kafka]` and `[cassandra]`, log and store are there; `data` then only keeps Spark's output.
    """

    data: str = "everlog-data"
    log: LogConfig = LogConfig()
    store: StoreConfig = StoreConfig()
    journal: JournalConfig = JournalConfig()
    tags: TagsConfig = TagsConfig()
    topics: dict[str, TopicConfig] = {}
    pipeline: PipelineConfig = PipelineConfig()
    projections: ProjectionsConfig = ProjectionsConfig()
    spark: SparkConfig = SparkConfig()
    documents: DocumentsConfig = DocumentsConfig()
    server: ServerConfig = ServerConfig()
    kafka: KafkaConfig | None = None
    cassandra: CassandraConfig | None = None
    pekko: PekkoConfig = PekkoConfig()
    queue: QueueConfig = QueueConfig()
    queues: dict[str, QueueOptions] = {}

    def __post_init__(self) -> None:
        if (self.kafka is None) != (self.cassandra is None):
            missing = "[kafka]" if self.kafka is None else "[cassandra]"
            raise ValueError(f"{missing} is missing: log and store move to a cluster together")

    def is_system_topic(self, topic: str) -> bool:
        """Whether a topic, by its short name, belongs to a part of Everlog, which alone writes into it.

        Names that differ only in case, or in '.' and '_', count as one: a broker does not hold both of the latter.

        >>> Config().is_system_topic("everlog.operations"), Config().is_system_topic("orders")
        (True, False)
        """
        name = _folded(topic)
        return name.startswith(SYSTEM_PREFIX) or name == _folded(self.documents.topic)

    def slices(self, log_name: str) -> bool:
        """Whether all events of a topic of the log get the tag of their slice."""
        own = self.topics.get(self.journal.short(log_name), TopicConfig()).slices
        return self.tags.slices if own is None else own

    def propagates(self, log_name: str) -> bool:
        """Whether deleted events of a topic of the log leave the views by tag."""
        own = self.topics.get(self.journal.short(log_name), TopicConfig()).on_delete
        return (own or self.tags.on_delete) == "propagate"

    @property
    def embedded(self) -> bool:
        """Whether log and store are files of the folder."""
        return self.kafka is None

    @property
    def folder(self) -> Path:
        return Path(self.data)

    @property
    def where(self) -> str:
        """Where log and store are, for people: the folder, or the servers.

        >>> Config(kafka=KafkaConfig(), cassandra=CassandraConfig()).where
        'Kafka 127.0.0.1:9092, Cassandra 127.0.0.1:9042 (everlog)'
        """
        if self.kafka is None or self.cassandra is None:
            return self.data
        points = ",".join(self.cassandra.contact_points)
        return f"Kafka {self.kafka.bootstrap_servers}, Cassandra {points} ({self.cassandra.keyspace})"


def _folded(topic: str) -> str:
    return topic.lower().replace("_", ".")


def load_config(target: str | os.PathLike[str]) -> Config:
    """The configuration that a folder or a TOML file stands for.

    A folder may hold an `everlog.toml` of its own. A relative `data` is taken from the file's folder.

    >>> load_config("everlog-data").log.partitions
    4
    """
    path = Path(target)
    if path.suffix == ".toml":
        return _read(path, path.parent)
    own = path / CONFIG_FILE
    if own.is_file():
        return msgspec.structs.replace(_read(own, path), data=str(path))
    return Config(data=str(path))


def _read(path: Path, base: Path) -> Config:
    try:
        found = tomllib.loads(path.read_text())
        config = msgspec.convert(found, Config)
    except FileNotFoundError as error:
        raise InvalidConfig(f"there is no file {path}: name a folder, or write one") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"{path}: {error}: see 'everlog --help' or docs/configuration.md for the settings"
        ) from error
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    return msgspec.structs.replace(config, data=str(base / config.data))


def prepare_folder(folder: Path, *, read: bool = False) -> None:
    """Make the data folder, or say why that is not possible; to `read` the files in it, it need not be writable."""
    try:
        make_folder(folder)
    except (PermissionError, FileExistsError, NotADirectoryError, OSError) as error:
        raise NotWritable(f"the folder {folder} cannot be made: {error.strerror}: choose another one") from error
    if not os.access(folder, os.W_OK | os.X_OK) and not (read and any(folder.glob("*.db"))):
        raise NotWritable(f"the folder {folder} is not writable for this user: change its owner or choose another one")
