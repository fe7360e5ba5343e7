"""The settings of the tables that Akka or Pekko writes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from everlog.config.numbers import Positive, Seconds, SecondsOrZero


class PekkoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[pekko]`: tables that Akka or Pekko Persistence Cassandra writes and Everlog only reads.

    The names and defaults are theirs. What depends on several settings is checked before the first query.
    """

    keyspace: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z][a-zA-Z0-9_]{0,47}$")] = "akka"
    table: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z][a-zA-Z0-9_]{0,47}$")] = "tag_views"
    enabled: bool = True
    support_all_persistence_ids: bool = True
    bucket_size: str = "Hour"
    first_time_bucket: str = "20151120T00:00"
    hold: Literal["tag", "journal"] = "tag"
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 500
    refresh_interval: Seconds = 3.0
    eventual_consistency_delay: SecondsOrZero = 5.0
    gap_timeout: SecondsOrZero = 10.0
    new_persistence_id_scan_timeout: SecondsOrZero = 0.0
    offset_scanning_period: SecondsOrZero = 0.2
    back_track_interval: Seconds | Literal["off"] = 1.0
    back_track_period: Seconds | Literal["max"] = 5.0
    back_track_long_interval: Seconds | Literal["off"] = 120.0
    back_track_long_period: Seconds | Literal["max"] = "max"
    cleanup_old_persistence_ids: Seconds | Literal["default", "off"] = "default"
    max_missing_to_search: Positive = 5000
    retry_attempts: Annotated[int, msgspec.Meta(ge=-1)] = 100
    retry_min_backoff: Seconds = 1.0
    retry_max_backoff: Seconds = 30.0
    retry_random_factor: SecondsOrZero = 0.1
    target_partition_size: Positive = 500_000
    gap_free_sequence_numbers: bool = True
    events_by_persistence_id_gap_timeout: SecondsOrZero = 10.0
    verbose_debug_logging: bool = False
