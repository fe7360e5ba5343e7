"""Journals on Kafka and Cassandra keep what every journal promises."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from itertools import chain, count, repeat

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.testing import JournalConformance
from tests.fixtures.cluster import MakeConfig
from tests.fixtures.kafka import trim

pytestmark = pytest.mark.cluster


# Making the tables takes longer than a test, so some share them; each has topics of its own. They must not be many: a
# test that leaves a batch unpublished holds the watermark of all, and every batch loads the plans above that.
TESTS_PER_KEYSPACE = 20


@pytest.fixture(scope="module")
def keyspaces() -> Iterator[str]:
    return chain.from_iterable(repeat(f"j{secrets.token_hex(5)}", TESTS_PER_KEYSPACE) for _ in count())


@pytest.fixture
def keyspace(keyspaces: Iterator[str]) -> str:
    return next(keyspaces)


class TestClusterJournal(JournalConformance):
    # All cells run on the embedded backend; log and store pass suites of their own here.
    whole = False

    @pytest.fixture
    async def everlog(self, shared_config: MakeConfig, keyspace: str) -> AsyncIterator[Everlog]:
        config = shared_config()
        assert config.cassandra is not None
        cassandra = msgspec.structs.replace(config.cassandra, keyspace=keyspace)
        async with connect(msgspec.structs.replace(config, cassandra=cassandra)) as everlog:
            yield everlog

    async def trim(self, everlog: Everlog) -> None:
        for topic in await everlog.parts.log.topics():
            if not everlog.config.journal.includes(topic.name):
                continue
            for partition, pointer in (await everlog.parts.store.pointers(topic.name)).items():
                if (await everlog.parts.log.bounds(topic, partition)).start <= pointer:
                    await asyncio.to_thread(trim, everlog.config, topic, partition, pointer + 1)
        for found in (await everlog.status()).partitions:
            assert found.start == found.end == found.pointer + 1

    test_outcomes = pytest.mark.case("kafka-journal", 35, 39, 40, 42, 43)(JournalConformance.test_outcomes)
    test_contract = pytest.mark.case("kafka-journal", 35)(JournalConformance.test_contract)
    test_delete_of_nothing_writes_nothing = pytest.mark.case("kafka-journal", 35)(
        JournalConformance.test_delete_of_nothing_writes_nothing
    )
    test_marks_alone_move_the_pointer = pytest.mark.case("kafka-journal", 27)(
        JournalConformance.test_marks_alone_move_the_pointer
    )
    test_a_broken_record_halts_its_journal_only = pytest.mark.case("kafka-journal", 54)(
        JournalConformance.test_a_broken_record_halts_its_journal_only
    )
    test_journals_work_while_nothing_is_replicated = pytest.mark.case("kafka-journal", 55)(
        JournalConformance.test_journals_work_while_nothing_is_replicated
    )
