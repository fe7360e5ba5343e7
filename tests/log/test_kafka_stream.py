"""Kafka's rows as records, and the settings of the connector; the connector itself is tested in tests/pipeline."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.config import CassandraConfig, Config, JournalConfig, KafkaConfig
from everlog.core.record import Record
from everlog.errors import InvalidConfig
from everlog.log.kafka.client import java_settings
from everlog.log.kafka.records import split_headers
from everlog.log.kafka.stream import KafkaStream, decode_rows, source_options, topic_pattern

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]


def rows_of(messages: list[Message], topic: str = "journal-orders", partition: int = 3) -> pa.RecordBatch:
    """Messages as Spark hands them over."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "offset": 100 + at,
            "timestamp": 1_700_000_000_000 + at,
            "key": key,
            "value": value,
            "headers": None if headers is None else [{"key": name, "value": given} for name, given in headers],
        }
        for at, (key, value, headers) in enumerate(messages)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def records_of(messages: list[Message], partition: int = 3) -> list[Record]:
    """The same messages as the log's own reader makes records of them."""
    return [
        Record(partition, 100 + at, 1_700_000_000_000 + at, key, *_swapped(value, headers))
        for at, (key, value, headers) in enumerate(messages)
    ]


def _swapped(value: bytes | None, headers: list[tuple[str, bytes | None]] | None) -> tuple[Any, ...]:
    action, others = split_headers(headers or [])
    return action, value, others


def decoded(batch: pa.RecordBatch) -> list[Record]:
    (part,) = decode_rows(batch)
    assert (part.topic, part.partition) == ("journal-orders", 3)
    assert part.size > 0
    return list(part.records)


NAMES = st.sampled_from(["journal.action", "journal.action", "a", "ü", ""])
MESSAGES = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=4),
        st.none() | st.binary(max_size=4),
        st.none() | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=4)), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@given(MESSAGES)
def test_the_pipeline_reads_a_message_as_the_log_does(messages) -> None:
    """Tail and pipeline must fold the same records, whatever headers a message has."""
    assert decoded(rows_of(messages)) == records_of(messages)


def test_messages_with_the_action_alone() -> None:
    """The common case has a way of its own; also in a slice of a batch, whose arrays do not start at 0."""
    messages: list[Message] = [(b"k", b"v%d" % at, [("journal.action", b"a%d" % at)]) for at in range(5)]
    assert decoded(rows_of(messages)) == records_of(messages)
    assert decoded(rows_of(messages).slice(2, 2)) == records_of(messages)[2:4]


PLACES = st.tuples(st.sampled_from(["journal-a", "journal-b"]), st.integers(0, 2))


@given(st.lists(st.tuples(PLACES, MESSAGES), max_size=4, unique_by=lambda run: run[0]))
def test_the_partitions_of_a_task_are_told_apart(runs) -> None:
    batch = pa.concat_batches([rows_of([]), *(rows_of(messages, *place) for place, messages in runs)])
    parts = list(decode_rows(batch))
    assert [(part.topic, part.partition) for part in parts] == [place for place, _ in runs]
    for part, (place, messages) in zip(parts, runs, strict=True):
        assert part.records == records_of(messages, place[1])


def test_an_empty_batch() -> None:
    assert list(decode_rows(rows_of([]))) == []


def test_where_a_batch_ends() -> None:
    source = KafkaStream(Config(kafka=KafkaConfig(), cassandra=CassandraConfig()), KafkaConfig())
    assert source.ends('{"journal-a":{"0":12,"1":0},"journal-b":{"10":7}}') == {
        "journal-a/0": 12,
        "journal-a/1": 0,
        "journal-b/10": 7,
    }


@pytest.mark.case("kafka-journal", 33)
@pytest.mark.parametrize(
    ("journal", "left_out", "taken", "passed"),
    [
        (JournalConfig(), [], ["journal-a", "journal-"], ["other", "my-journal-a", "journal", "journalXa"]),
        (JournalConfig(topic_prefix="a.b"), [], ["a.b", "a.bc"], ["aXb", "xa.b"]),
        (JournalConfig(), ["journal-a"], ["journal-ab", "journal-b"], ["journal-a"]),
        (JournalConfig(), ["journal-a", "journal-a.b"], ["journal-aXb"], ["journal-a", "journal-a.b"]),
        (JournalConfig(topic_prefix="", topics=("x", "y.z")), ["x"], ["y.z"], ["x", "yXz", "xy.z", "y.za"]),
        (JournalConfig(topic_prefix="", topics=("x",)), ["x"], [], ["x", ""]),
    ],
)
def test_only_the_topics_that_are_journals_are_read(journal, left_out, taken, passed) -> None:
    """The prefix is taken as it is, and what is left out is left out; the connector searches, it does not match."""
    pattern = re.compile(topic_pattern(journal, left_out))
    assert [name for name in [*taken, *passed] if pattern.search(name)] == taken


def test_the_options_of_the_connector() -> None:
    """Every partition is named, from right after pointer2; a partition is never cut into several tasks."""
    kafka = KafkaConfig(request_timeout_s=7.0, spark_options={"groupIdPrefix": "mine"})
    config = Config(kafka=kafka, cassandra=CassandraConfig())
    options = source_options(config, kafka, {"journal-a/0": 5, "journal-a/1": 0, "journal-b/0": 9}, ())
    assert json.loads(options["startingOffsets"]) == {"journal-a": {"0": 5, "1": 0}, "journal-b": {"0": 9}}
    assert "minPartitions" not in options
    assert options["failOnDataLoss"] == options["includeHeaders"] == "true"
    assert options["kafka.fetch.max.wait.ms"] == "10"
    assert options["kafka.isolation.level"] == "read_uncommitted"
    assert options["kafka.request.timeout.ms"] == options["kafka.default.api.timeout.ms"] == "7000"
    assert options["maxOffsetsPerTrigger"] == str(config.pipeline.max_batch_records)
    assert options["groupIdPrefix"] == "mine"


@pytest.mark.parametrize(
    ("config", "protocol"),
    [
        (KafkaConfig(), "PLAINTEXT"),
        (KafkaConfig(username="u"), "SASL_PLAINTEXT"),
        (KafkaConfig(tls=True), "SSL"),
        (KafkaConfig(tls=True, username="u"), "SASL_SSL"),
    ],
)
def test_how_the_connection_is_secured(config, protocol) -> None:
    assert java_settings(config)["security.protocol"] == protocol


def test_credentials_for_java(monkeypatch) -> None:
    """Quotes and backslashes in a password are part of it; without one, the environment is asked."""
    config = KafkaConfig(username="u", password='a"b\\c', mechanism="PLAIN")
    settings = java_settings(config)
    assert settings["sasl.mechanism"] == "PLAIN"
    assert settings["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="a\\"b\\\\c";'
    )
    monkeypatch.setenv("EVERLOG_KAFKA_PASSWORD", "secret")
    scram = java_settings(KafkaConfig(username="u"))
    assert "scram.ScramLoginModule" in scram["sasl.jaas.config"]
    assert 'password="secret"' in scram["sasl.jaas.config"]


def test_certificates_travel_as_text(tmp_path) -> None:
    """Executors on other machines have none of these files."""
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"the {name}")
    config = KafkaConfig(
        tls=True, ca_file=str(tmp_path / "ca"), cert_file=str(tmp_path / "cert"), key_file=str(tmp_path / "key")
    )
    settings = java_settings(config)
    assert settings["ssl.truststore.certificates"] == "the ca"
    assert settings["ssl.keystore.certificate.chain"] == "the cert"
    assert settings["ssl.keystore.key"] == "the key"
    assert settings["ssl.truststore.type"] == settings["ssl.keystore.type"] == "PEM"
    with pytest.raises(InvalidConfig, match="ca_file"):
        java_settings(KafkaConfig(tls=True, ca_file=str(tmp_path / "none")))
