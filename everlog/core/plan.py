"""The order of all tagged events, decided once and before any of their rows is written.

A plan gives every offset of a range of each log partition its tick: first tick + (offset - start of the range).
Plans follow each other without a gap in offsets and never overlap in ticks, so the order depends on nothing but the
plans themselves: not on how the log is cut into batches, on clocks, on what was rejected or applied before. A replay,
a second pipeline and one that slept for a week write the very same rows.

The watermark is the last tick below which nothing can appear any more. Everything here is pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from everlog.core.buckets import Bucket, bucket_of
from everlog.core.tag_names import shard_of
from everlog.core.timeuuid import MAX_RANK, TimeUuid, event_rank, spread, text_of, text_of_rank

# What is pinned about the order: the number of each topic, where its plans begin, and the first tick of all.
TOPIC_NUMBER = "tag-topic:"
BEGINNING = "tag-beginning:"
START = "tag-start"
# A topic that is pinned under this name, too, will never be replicated again: nothing waits for it.
RETIRED = "retired:"


class TagPlan(msgspec.Struct, frozen=True, gc=False):
    """Offsets `[first, end)` of log partitions (`journal-orders/0`), beginning at `tick`; none of them is empty.

    Where the rows go is decided with their order, so that a replay under other settings does not write them twice:
    `bucket_ms` is the size of buckets, `shards` the number of shards of each hot tag.
    """

    nr: int
    tick: int
    ranges: dict[str, tuple[int, int]]
    bucket_ms: int
    shards: dict[str, int] = {}

    @property
    def longest(self) -> int:
        return max(end - first for first, end in self.ranges.values())

    @property
    def last_tick(self) -> int:
        return self.tick + self.longest - 1


class Watermark(msgspec.Struct, frozen=True, gc=False):
    """Up to plan `nr` all rows are in the tables, and nothing will ever appear at or below `tick`.

    `positions` says where each log partition's share of that ends: the next offset.
    """

    nr: int
    tick: int
    positions: dict[str, int]

    @property
    def end(self) -> TimeUuid:
        """The last place that is safe to read."""
        return TimeUuid(self.tick, MAX_RANK)


NOTHING = Watermark(0, -1, {})


def extend(
    previous: TagPlan | None,
    covered: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    now_tick: int,
    bucket_ms: int,
    shards: Mapping[str, int] | None = None,
) -> TagPlan | None:
    """The next plan, so that all offsets below `ends` have their place; None if they have it already.

    `covered`: where the plans so far end, for every partition of `ends`.
    """
    ranges = {place: (covered[place], end) for place, end in sorted(ends.items()) if end > covered[place]}
    if not ranges:
        return None
    nr = 1 if previous is None else previous.nr + 1
    tick = now_tick if previous is None else max(now_tick, previous.tick + previous.longest + 1)
    return TagPlan(nr, tick, ranges, bucket_ms, dict(shards or {}))


def ends_of(plans: Iterable[TagPlan]) -> dict[str, int]:
    """Where these plans end, by partition; later ones count."""
    return {place: end for plan in plans for place, (_, end) in plan.ranges.items()}


def is_covered(plan: TagPlan, pointers: Mapping[str, int], retired: Collection[str] = ()) -> bool:
    """Whether everything of the plan is in the tables. `pointers` are the last replicated offsets."""
    return all(
        pointers.get(place, -1) >= end - 1 or place.rpartition("/")[0] in retired
        for place, (_, end) in plan.ranges.items()
    )


def advance(
    watermark: Watermark, plans: Sequence[TagPlan], pointers: Mapping[str, int], retired: Collection[str] = ()
) -> Watermark | None:
    """The watermark after these plans, as far as all of them up to there are covered; None if it stays.

    `pointers` must have been read after the plans: a pointer never moves back, so what it covers stays covered.
    """
    reached: list[TagPlan] = []
    for plan in plans:
        if plan.nr <= watermark.nr:
            continue
        assert plan.nr == watermark.nr + len(reached) + 1, "a plan is missing"
        if not is_covered(plan, pointers, retired):
            break
        reached.append(plan)
    if not reached:
        return None
    return Watermark(reached[-1].nr, reached[-1].last_tick, {**watermark.positions, **ends_of(reached)})


class PlanShare(NamedTuple):
    """A plan's share of one log partition."""

    first: int
    end: int
    tick: int
    bucket_ms: int
    shards: Mapping[str, int]


def share_of(plan: TagPlan, place: str) -> PlanShare:
    first, end = plan.ranges[place]
    return PlanShare(first, end, plan.tick, plan.bucket_ms, plan.shards)


class PlanPlace:
    """Where the events of one log record go, in the order and in the store."""

    __slots__ = ("_text", "bucket", "rank", "shards", "tick")

    def __init__(self, tick: int, rank: int, bucket: Bucket, shards: Mapping[str, int]) -> None:
        self.tick = tick
        self.rank = rank
        self.bucket = bucket
        self.shards = shards
        self._text = text_of(tick)

    def offset(self, index: int) -> TimeUuid:
        """The place of the event with this index."""
        return TimeUuid(self.tick, self.rank + spread(index))

    def ordering(self, index: int) -> str:
        """The same as text."""
        return self._text + text_of_rank(self.rank + spread(index))

    def bucket_of(self, tag: str, journal_id: str) -> Bucket:
        """The bucket that takes a journal's rows of this tag."""
        shards = self.shards.get(tag) if self.shards else None
        return self.bucket if shards is None else self.bucket._replace(shard=shard_of(journal_id, shards))


class Order:
    """The places of one log partition's events, as far as a batch needs them. Travels to the tasks."""

    def __init__(self, topic_number: int, partition: int, shares: Sequence[PlanShare]) -> None:
        self._rank = event_rank(topic_number, partition, 0)
        self._shares = sorted(shares, key=lambda share: share.first)
        self._firsts = [share.first for share in self._shares]

    def place(self, position: int) -> PlanPlace | None:
        """The place of the record at this offset of the log.

        None for an offset that no kept plan knows: plans are dropped only when everything of theirs is published.
        """
        at = bisect_right(self._firsts, position) - 1
        if at < 0 or position >= self._shares[at].end:
            return None
        share = self._shares[at]
        tick = share.tick + position - share.first
        bucket = Bucket(bucket_of(TimeUuid(tick, 0).ms, share.bucket_ms), share.bucket_ms)
        return PlanPlace(tick, self._rank, bucket, share.shards)
