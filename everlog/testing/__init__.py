"""Conformance suites for backends, your own included.

    class TestMyLog(LogConformance):
        @pytest.fixture
        async def log(self) -> AsyncIterator[Log]:
            ...

Needs pytest and pytest-asyncio. `JournalConformance` runs the whole journal on your log and store;
`everlog.testing.documents.DocumentStoreConformance` is for stores of documents, with
`everlog.testing.document_messages.DocumentMessageConformance` and
`everlog.testing.document_batches.DocumentBatchConformance`. For tests of your own projections:
`ListProvider`, `MemoryOffsets`, `run_projection`, `projection_sink`; of your own jobs: `drain`, `ManualClock`.
"""

import pytest

# So that a failing assertion of a suite shows its values.
pytest.register_assert_rewrite(
    "everlog.testing.document_batches",
    "everlog.testing.document_messages",
    "everlog.testing.document_schemas",
    "everlog.testing.documents",
    "everlog.testing.journal",
    "everlog.testing.log",
    "everlog.testing.projection_views",
    "everlog.testing.projections",
    "everlog.testing.queue_retention",
    "everlog.testing.queue_leases",
    "everlog.testing.queue_merges",
    "everlog.testing.store",
    "everlog.testing.tags",
    "everlog.testing.topic_events",
)

from everlog.projections.memory import MemoryOffsets  # noqa: E402
from everlog.testing.journal import JournalConformance  # noqa: E402
from everlog.testing.log import LogConformance  # noqa: E402
from everlog.testing.manual_clock import ManualClock  # noqa: E402
from everlog.testing.projection_kit import (  # noqa: E402
    ListProvider,
    per_envelope,
    projection_sink,
    run_projection,
)
from everlog.testing.projection_views import ViewConformance  # noqa: E402
from everlog.testing.projections import OffsetStoreConformance  # noqa: E402
from everlog.testing.queue import QueueConformance  # noqa: E402
from everlog.testing.queue_drain import DrainedJob, drain, drain_sync  # noqa: E402
from everlog.testing.replication import replicate  # noqa: E402
from everlog.testing.store import StoreConformance  # noqa: E402
from everlog.testing.tags import TagConformance  # noqa: E402
from everlog.testing.topic_events import TopicEventsConformance  # noqa: E402

__all__ = [
    "DrainedJob",
    "JournalConformance",
    "ListProvider",
    "LogConformance",
    "ManualClock",
    "MemoryOffsets",
    "OffsetStoreConformance",
    "QueueConformance",
    "StoreConformance",
    "TagConformance",
    "TopicEventsConformance",
    "ViewConformance",
    "drain",
    "drain_sync",
    "per_envelope",
    "projection_sink",
    "replicate",
    "run_projection",
]
