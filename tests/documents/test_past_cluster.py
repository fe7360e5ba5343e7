"""The past, paths and manners of HTTP on Kafka and Cassandra, as in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from everlog.client import connect
from everlog.config import Config, DocumentsConfig
from everlog.console.server import serving
from tests.documents.test_documents_cluster import config, keyspace  # noqa: F401
from tests.documents.test_past import (
    MAX_HISTORY,
    Served,
    test_a_collection_as_it_was_has_pages,  # noqa: F401
    test_a_feed_behind_the_end_says_so,  # noqa: F401
    test_history_has_pages_in_both_directions,  # noqa: F401
    test_the_history_of_an_element_reads_a_bounded_part_at_a_time,  # noqa: F401
)
from tests.documents.test_paths import test_odd_names_go_round_everywhere  # noqa: F401
from tests.server.test_manners import (  # noqa: F401
    test_a_list_of_collections,
    test_a_read_is_conditional_in_both_ways,
    test_fields_of_a_body,
    test_options_and_allow_name_the_methods_of_each_kind_of_path,
    test_writes_answer_with_the_tag_of_what_is_stored,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
async def served(config: Config) -> AsyncIterator[Served]:  # noqa: F811
    documents = DocumentsConfig(max_history=MAX_HISTORY, page_size=4, feed_poll_interval_s=0.05)
    async with (
        connect(msgspec.structs.replace(config, documents=documents)) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        yield Served(log, remote.documents, http)


@pytest.fixture
def http(served: Served) -> httpx.AsyncClient:
    served.http.headers["Accept-Encoding"] = "identity"
    return served.http
