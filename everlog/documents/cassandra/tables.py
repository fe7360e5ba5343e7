"""The tables of documents."""

from __future__ import annotations

from everlog.cassandra.schema import StepSeries, TableSet

# Tables of formats 0 and 1, of checkouts before a release, lack columns: they are refused.
DOCUMENT_TABLES = TableSet(
    "documents",
    "everlog.documents.cassandra",
    series=(StepSeries("everlog-schema-version-documents", first=3),),
)
