"""Sources by what they say about themselves in the store; for the lag while nobody runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everlog.projections.record_source import Records
from everlog.projections.source import Source
from everlog.projections.tag_source import TagSource


def source_of(description: Mapping[str, Any]) -> Source | None:
    """The source, or None if it is a user's own or one of a newer version."""
    match description:
        case {"kind": "records", "topic": str(topic), "split": int(split)}:
            return Records(topic, split=split)
        case {"kind": "tag", "tag": str(name)}:
            return TagSource(name)
        case {"kind": "slices", "split": int(split)}:
            return TagSource(None, split)
    return None
