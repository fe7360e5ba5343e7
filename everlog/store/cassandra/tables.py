"""The tables of journals: kafka-journal's, whose steps are carried on where it stopped, and what Everlog adds."""

from __future__ import annotations

from everlog.cassandra.schema import FoundSchema, NewTable, StepSeries, TableSet
from everlog.store.cassandra.heads import SEGMENTS_PER_PARTITION

KAFKA_JOURNAL_VERSION = "schema-version"
EVERLOG_VERSION = "everlog-schema-version"
# Set when Everlog itself made the table of heads: how many segments a log partition has there.
HEAD_SEGMENTS_KEY = "everlog-head-segments"

JOURNAL_TABLES = TableSet(
    "journals",
    "everlog.store.cassandra",
    migrations="migrations.cql",
    series=(
        StepSeries(KAFKA_JOURNAL_VERSION, "kafka_journal_", first=0, shared=True),
        StepSeries(EVERLOG_VERSION, "everlog_", first=7),
    ),
    guarded=(
        "metajournal",
        "journal",
        "gap",
        "pointer2",
        "snapshot_buffer",
        "quarantine",
        "verdict",
        "tag_views",
        "tag_write_progress",
    ),
    new_tables=(NewTable("metajournal", ((HEAD_SEGMENTS_KEY, str(SEGMENTS_PER_PARTITION)),)),),
)


def is_taken_over(found: FoundSchema) -> bool:
    """Whether kafka-journal made the table of heads: they lie where it looks for them, and some may be its own."""
    return HEAD_SEGMENTS_KEY not in found.settings
