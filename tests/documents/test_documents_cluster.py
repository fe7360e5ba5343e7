"""Documents on Kafka and Cassandra do what those in a folder do."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config
from everlog.console.server import serving
from tests.documents.test_change_stream import test_a_stream_is_a_naive_filter_over_all_changes  # noqa: F401
from tests.documents.test_documents import (  # noqa: F401
    docs,
    events,
    faulty,
    test_a_collection,
    test_a_document_and_its_events,
    test_a_failing_event_holds_back_the_later_ones_of_its_document_only,
    test_a_feed_goes_on_where_it_ended,
    test_a_query_after_the_deletion_of_its_collection,
    test_a_query_finds_what_was_just_written,
    test_a_view_shows_what_matches,
    test_a_view_shows_what_was_there_before,
    test_conditional_writes,
    test_events_go_out_in_the_order_of_revisions_and_once,
    test_history_and_the_past,
    test_indexes_follow_every_change,
    test_messages_are_applied_once,
    test_nodes_share_the_partitions,
    test_odd_values_never_block_the_feed_nor_a_build,
    test_the_checkpoint_stops_before_what_cannot_be_completed,
    test_the_past_of_elements_and_collections,
    test_what_is_refused_leaves_no_trace,
)
from tests.documents.test_live import (  # noqa: F401
    test_a_collection_that_is_deleted_while_it_is_read,
    test_the_present_then_what_enters_changes_and_leaves,
    test_what_changes_while_it_is_read,
)
from tests.documents.test_views import (  # noqa: F401
    test_a_deleted_view_stays_deleted,
    test_of_two_tasks_the_newer_revision_counts,
    test_views_follow_the_deletion_of_a_collection,
    test_what_is_set_aside_is_tried_again,
)
from tests.fixtures.cluster import MakeConfig
from tests.fixtures.keyspaces import emptied
from tests.support import ManualClock

pytestmark = pytest.mark.cluster

C = "/hyper-storage/content/"


@pytest.fixture
def clock() -> ManualClock:
    """Near the real time: the broker would drop records of years ago."""
    return ManualClock(int(time.time() * 1000))


@pytest.fixture(scope="module")
def keyspace() -> str:
    return f"e{secrets.token_hex(5)}"


@pytest.fixture
async def config(shared_config: MakeConfig, keyspace: str) -> AsyncIterator[Config]:
    """With a keyspace that one test has after the other, as all use the same paths."""
    found = shared_config()
    assert found.cassandra is not None
    cassandra = msgspec.structs.replace(found.cassandra, keyspace=keyspace)
    async with emptied(cassandra):
        yield msgspec.structs.replace(found, cassandra=cassandra)


@pytest.fixture
async def log(config: Config, clock: ManualClock) -> AsyncIterator[Everlog]:
    async with connect(config, clock=clock) as log:
        yield log


@pytest.mark.case("hyperstorage", 15, 26)
async def test_several_nodes_share_a_document_and_a_collection(config: Config) -> None:
    """Fifty writers through three servers: every one gets a revision of its own; new ids grow over a restart."""
    async with (
        connect(config) as one,
        connect(config) as two,
        connect(config) as three,
        serving(one, host="127.0.0.1", port=0) as first,
        serving(two, host="127.0.0.1", port=0) as second,
        serving(three, host="127.0.0.1", port=0) as third,
        httpx.AsyncClient(timeout=60) as http,
    ):
        servers = (first, second, third)
        calls = [http.put(f"{servers[n % 3]}{C}d", content=str(n)) for n in range(50)]
        answers = await asyncio.gather(*calls)
        assert all(answer.status_code in (200, 201) for answer in answers), [answer.text for answer in answers]
        revisions = sorted(int(answer.json()["transactionId"].rpartition(":")[2]) for answer in answers)
        assert revisions == list(range(1, 51))
        assert [revision for _, _, revision, _ in await events(one.documents, "d")] == revisions
        posted = [(await http.post(f"{servers[n % 3]}{C}c~", content="{}")).json()["path"] for n in range(30)]
        assert posted == sorted(set(posted), key=str.encode)
    async with connect(config) as again:
        later = [(await again.documents.post("c~", {})).path for _ in range(5)]
        assert posted[-1].encode() < later[0].encode()
        page = await again.documents.list("c~", size=100)
        assert [f"c~/{one['id']}" for one in page.elements] == posted + later
