"""The operations log: who did what in the console, and why."""

from __future__ import annotations

from everlog.console.console import ConsolePage, Context, Model
from everlog.server.audit import JOURNAL, TOPIC

PAGE = 50


async def build_operations(context: Context) -> Model:
    found = await context.operations.list(before=context.whole("before"), limit=PAGE)
    return {
        "topic": TOPIC,
        "journal": JOURNAL,
        "operations": found,
        "next": found[-1].seq_nr if len(found) == PAGE else None,
    }


OPERATIONS = ConsolePage("operations", "Operations", "operations.html", build_operations)
