"""Where the pipeline's records come from: the embedded log, or Kafka."""

from __future__ import annotations

from everlog.config import Config
from everlog.pipeline.sources.base import Source


def source_of(config: Config) -> Source:
    """The source that a configuration names."""
    if config.kafka is not None:
        from everlog.pipeline.sources.kafka import KafkaSource

        return KafkaSource(config, config.kafka)
    from everlog.pipeline.sources.embedded import EmbeddedSource

    return EmbeddedSource(config)
