"""Where the pipeline's records come from: the embedded log, or Kafka."""

from __future__ import annotations

from everlog.config import Config
from everlog.log.stream import LogStream


def source_of(config: Config) -> LogStream:
    """The source that a configuration names."""
    if config.kafka is not None:
        from everlog.log.kafka.stream import KafkaSource

        return KafkaSource(config, config.kafka)
    from everlog.log.sqlite.stream import EmbeddedSource

    return EmbeddedSource(config)
