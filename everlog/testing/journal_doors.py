"""Topics of the system: their own part writes into them, and no journal object that a user gets does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.errors import SystemTopic
from everlog.journal.aggregate import Aggregate
from everlog.journal.journal import Journal

SYSTEM_TOPICS = (
    "everlog.operations",
    "everlog.more",
    "Everlog.Operations",
    "everlog_operations",
    "documents",
    "DocuMents",
)
WRITES: dict[str, Callable[[Journal], Coroutine[Any, Any, Any]]] = {
    "append": lambda journal: journal.append("k", Event(1)),
    "append at": lambda journal: journal.append("k", Event(1, seq_nr=7)),
    "append once": lambda journal: journal.append("k", Event(1), expected=0, idempotency_key="once"),
    "append unseen": lambda journal: journal.append("k", Event(1), verdict=False),
    "delete": lambda journal: journal.delete("k"),
    "delete some": lambda journal: journal.delete("k", to=1),
    "purge": lambda journal: journal.purge("k"),
    "mark": lambda journal: journal.mark("k"),
    "save": lambda journal: journal.snapshots.save("k", seq_nr=1, payload=1),
    "drop": lambda journal: journal.snapshots.delete("k"),
    "drop one": lambda journal: journal.snapshots.delete("k", seq_nr=1),
}


class ForgedOperation(Aggregate, topic="everlog.operations"):
    """Events of a topic that is not its own."""

    def apply(self, event: Any) -> None: ...


class JournalDoors:
    """The part of `JournalConformance` that is about topics of the system."""

    pytestmark = pytest.mark.asyncio

    async def test_topics_of_the_system_take_no_writes(self, everlog: Everlog) -> None:
        """Refused by the name alone: no such topic is made, and what can be read stays readable."""
        await everlog.journal("everlogs").append("k", Event(1))
        await everlog.journal("my-documents").append("k", Event(1))
        for topic in SYSTEM_TOPICS:
            journal = everlog.journal(topic)
            for name, write in WRITES.items():
                with pytest.raises(SystemTopic, match="alone writes into it") as refused:
                    await write(journal)
                assert refused.value.topic == topic, name
            assert [event async for event in journal.read("k")] == []
        # A server notes what it has refused in a topic of its own.
        assert {*await everlog.topics()} - {"everlog.operations"} == {"everlogs", "my-documents"}

    async def test_an_aggregate_of_a_topic_of_the_system_is_not_stored(self, everlog: Everlog) -> None:
        def forge(operation: ForgedOperation) -> None:
            operation.emit({"by": "someone else"})

        with pytest.raises(SystemTopic):
            await everlog.update(ForgedOperation, "console", forge)
        assert (await everlog.load(ForgedOperation, "console")).version == 0
