"""Buckets: the rows of a tag are stored by ranges of time, so that no partition of the store grows forever."""

from __future__ import annotations

from typing import NamedTuple

from everlog.core.tag_names import stored_tag
from everlog.core.timeuuid import TimeUuid, end_of, start_of
from everlog.errors import InvalidConfig

SIZES = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000}
MAX_BUCKET_MS = max(SIZES.values())


class Bucket(NamedTuple):
    """A bucket of a tag: its first millisecond, its size, and its shard, if the tag has any.

    `size` is its length in milliseconds when it was begun. Where the size was changed, buckets overlap;
    a later one may even begin where an earlier one does, and then they are stored together.
    """

    start: int
    size: int
    shard: int | None = None

    @property
    def first(self) -> TimeUuid:
        return start_of(self.start)

    @property
    def last(self) -> TimeUuid:
        return end_of(self.start + self.size - 1)

    def stored_tag(self, tag: str) -> str:
        return stored_tag(tag, self.shard)


def bucket_size(name: str) -> int:
    """The milliseconds of a bucket size, by its name.

    >>> bucket_size("Hour")
    3600000
    """
    size = SIZES.get(name.lower()) if isinstance(name, str) else None
    if size is None:
        raise InvalidConfig(f"a bucket size is one of Day, Hour, Minute, Second, not {name!r}")
    return size


def bucket_of(ms: int, size: int) -> int:
    """The first millisecond of the bucket that holds this one."""
    return ms // size * size
