"""The tables of documents."""

from __future__ import annotations

from everlog.cassandra.schema import StepSeries, TableSet

# Tables of format 0, of checkouts before a release, kept rows of one kind: they are refused.
DOCUMENT_TABLES = TableSet(
    "documents",
    "everlog.documents.cassandra",
    series=(StepSeries("everlog-schema-version-documents", first=2),),
)
