"""Cassandra for all parts: one pool of connections per event loop, one way to make and migrate tables."""

from everlog.errors import MissingExtra

try:
    import acsylla  # noqa: F401
except ImportError as error:
    raise MissingExtra("cassandra") from error
