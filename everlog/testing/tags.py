"""What views by tag must do, on whatever store: every event once, in one order that never changes."""

from __future__ import annotations

from everlog.testing.tag_reads import TagReadSuite
from everlog.testing.tag_upkeep import TagUpkeep
from everlog.testing.tag_writes import TagWriteSuite


class TagConformance(TagWriteSuite, TagReadSuite, TagUpkeep):
    """Subclass it with a fixture `everlog`: an open log of your own, with a clock that can be `advance`d."""
