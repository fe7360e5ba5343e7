"""Settings of documents that do not fit together are refused when they are read."""

from __future__ import annotations

import pytest

from everlog.config import CassandraConfig, Config, DocumentsConfig, KafkaConfig
from everlog.documents.factory import fitting
from everlog.errors import InvalidConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"fail_timeout_s": 2000.0},
        {"hot_recovery_s": 90_000.0},
        {"stale_recovery_s": 700_000.0},
        {"fail_timeout_s": 1800.0},
    ],
)
def test_windows_follow_each_other(settings):
    with pytest.raises(ValueError, match=r"\[documents\]"):
        DocumentsConfig(**settings)


def test_bodies_are_made_to_fit_into_a_record(caplog):
    """A log that takes less lowers the limit of bodies, and says so."""
    cassandra = CassandraConfig()
    assert fitting(Config(kafka=KafkaConfig(), cassandra=cassandra)).max_body_bytes == 1024 * 1024
    assert not caplog.records
    small = Config(kafka=KafkaConfig(max_record_bytes=100_000), cassandra=cassandra)
    assert fitting(small).max_body_bytes == 100_000 - 64 * 1024
    assert "max_record_bytes" in caplog.text
    with pytest.raises(InvalidConfig):
        fitting(Config(kafka=KafkaConfig(max_record_bytes=1000), cassandra=cassandra))
