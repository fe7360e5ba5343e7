"""Sources by what they say about themselves in the store; for the lag while nobody runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everlog.projections.records import Records
from everlog.projections.source import Source


def source_of(description: Mapping[str, Any]) -> Source | None:
    """The source, or None if it is a user's own or one of a newer version."""
    match description:
        case {"kind": "records", "topic": str(topic), "split": int(split)}:
            return Records(topic, split=split)
    return None
