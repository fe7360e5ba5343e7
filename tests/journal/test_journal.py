"""Journals on the embedded log and store keep what every journal promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import LogConfig
from everlog.testing import JournalConformance
from everlog.testing.journal_support import TRIMMED
from tests.support import ManualClock, small_config


class TestEmbeddedJournal(JournalConformance):
    @pytest.fixture
    async def everlog(self, tmp_path, clock) -> AsyncIterator[Everlog]:
        config = small_config(tmp_path / "data")
        log = LogConfig(partitions=2, synchronous="NORMAL", retention_hours=1)
        async with connect(msgspec.structs.replace(config, log=log), clock=clock) as everlog:
            yield everlog

    async def trim(self, everlog: Everlog) -> None:
        clock = everlog.parts.clock
        assert isinstance(clock, ManualClock)
        clock.advance(2 * 3600)
        await everlog.trim()
        for partition in (await everlog.status()).partitions:
            assert partition.start == partition.end == partition.pointer + 1

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

    async def test_a_plain_append_goes_on_after_the_log_was_trimmed(self, everlog: Everlog) -> None:
        """Another process compacted and trimmed: what this writer remembers is gone from the log, too."""
        await self.test_a_plain_append_goes_on_after_another_writer_deleted(everlog, TRIMMED)
