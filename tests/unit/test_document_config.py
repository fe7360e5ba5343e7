"""Settings of documents that do not fit together are refused when they are read."""

from __future__ import annotations

import pytest

from everlog.config import CassandraConfig, Config, DocumentsConfig, KafkaConfig


@pytest.mark.parametrize(
    "settings",
    [{"fail_timeout": 2000.0}, {"hot_recovery": 90_000.0}, {"stale_recovery": 700_000.0}, {"fail_timeout": 1800.0}],
)
def test_windows_follow_each_other(settings):
    with pytest.raises(ValueError, match=r"\[documents\]"):
        DocumentsConfig(**settings)


def test_a_body_fits_into_a_record():
    cluster = {"kafka": KafkaConfig(), "cassandra": CassandraConfig()}
    Config(**cluster, documents=DocumentsConfig(max_body_bytes=4 * 1024 * 1024 - 64 * 1024))
    with pytest.raises(ValueError, match="max_record_bytes"):
        Config(**cluster, documents=DocumentsConfig(max_body_bytes=4 * 1024 * 1024))
