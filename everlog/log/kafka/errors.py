"""From the client library's errors to ours, which say what to do."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

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
from everlog.errors.storage import rescue

_IDENTITY = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_SIZE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_REPLICAS = {KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._ISR_INSUFF}
_MISSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
}
_SETTINGS = {
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,
}
_REFUSED = {
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_MSG,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
_SILENCE = {
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY_BROKER,  # it is no longer among the brokers: while it starts, or for good
    KafkaError._UNKNOWN_BROKER,
    KafkaError._RESOLVE,
    KafkaError._RETRY,
    KafkaError._WAIT_CACHE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_CONTROLLER,
}
# With these a broker has surely not stored the record. All others leave it open.
_NOT_STORED = _RIGHTS | _SIZE | _REPLICAS | _MISSING | _REFUSED | {KafkaError._PURGE_QUEUE, KafkaError._QUEUE_FULL}
# Errors at which a connection was lost: what was under way then may have arrived.
LOST = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY_BROKER,
    KafkaError._TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
}


class LogPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def kafka_error(error: BaseException) -> KafkaError:
    """What an exception of the library is about."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


def is_silence(error: KafkaError) -> bool:
    """Whether it may be over in a moment: no broker answers, or the leader has just changed."""
    return error.code() in _SILENCE


def is_missing(error: KafkaError) -> bool:
    """Whether the topic or the partition is not there, or not known there yet."""
    return error.code() in _MISSING


def is_denied(error: KafkaError) -> bool:
    """Whether asking again will not help."""
    return error.code() in _IDENTITY or error.code() in _RIGHTS or error.code() == KafkaError._SSL


def explain(error: KafkaError, what: str, servers: str) -> EverlogError:
    """Our error for one of the library's. `what` was asked for, of `servers`."""
    code, text = error.code(), f"{what}: {error.str()}"
    if code in _IDENTITY:
        return AccessDenied(f"{text} ({servers}): check [kafka] username, password and mechanism")
    if code == KafkaError._SSL:
        return AccessDenied(f"{text} ({servers}): check [kafka] tls, ca_file, cert_file and key_file")
    if code in _RIGHTS:
        return AccessDenied(f"{text}: give this user the right to describe, read, write and create the topics")
    if code in _SIZE:
        return RecordTooLarge(
            f"{text}: append fewer events at once, or raise max.message.bytes of the topic and [kafka] max_record_bytes"
        )
    if code in _REPLICAS:
        return TooFewReplicas(f"{text}: start the missing brokers, or lower min.insync.replicas of the topic")
    if code in _MISSING:
        return TopicMissing(
            f"{text}: it was deleted or never made; open the log again to make it. If it held journals: {rescue()}"
        )
    if code in _SETTINGS:
        return InvalidConfig(f"{text}: check [kafka] and [log]")
    if code in _REFUSED:
        return Refused(f"{text}: check this host's clock and the settings of the topic")
    if code in _SILENCE:
        return Unreachable(f"{text}: is Kafka running at {servers}? It is tried again at the next call")
    return StorageFailed(f"{text} ({error.name()}, {servers})")


def explain_delivery(error: KafkaError, what: str, servers: str, *, lost: bool) -> EverlogError:
    """What became of a record. `lost`: a connection was lost meanwhile, so an earlier try may have arrived."""
    if error.code() in _NOT_STORED and not lost:
        return explain(error, what, servers)
    return Unacknowledged(f"{what}: {error.str()} ({servers})")
