"""The log on Kafka."""

from everlog.errors import MissingExtra

try:
    import confluent_kafka  # noqa: F401
except ImportError as error:
    raise MissingExtra("kafka") from error
