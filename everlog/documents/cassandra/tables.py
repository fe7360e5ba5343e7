"""The tables of documents."""

from __future__ import annotations

from everlog.cassandra.schema import TableSet

DOCUMENT_TABLES = TableSet("documents", "everlog.documents.cassandra")
