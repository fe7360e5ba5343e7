"""The tables of documents."""

from __future__ import annotations

from everlog.cassandra.schema import StepSeries, TableSet

# Tables of older formats, of checkouts before a release, lack rows or columns: they are refused.
DOCUMENT_TABLES = TableSet(
    "documents",
    "everlog.documents.cassandra",
    series=(StepSeries("everlog-schema-version-documents", first=5),),
)
