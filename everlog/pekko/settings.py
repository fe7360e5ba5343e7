"""The settings as the stages use them: milliseconds, checked against each other before anything is read."""

from __future__ import annotations

import logging
from typing import Self

import msgspec

from everlog.config import PekkoConfig
from everlog.errors import InvalidConfig
from everlog.pekko.time_buckets import Buckets

logger = logging.getLogger("everlog.pekko")


class StageSettings(msgspec.Struct, frozen=True):
    """Durations in ms; None: off, or for a period: as far back as is safe."""

    buckets: Buckets
    first_bucket: int
    hold_all: bool
    page_size: int
    refresh_ms: int
    delay_ms: int
    gap_timeout_ms: int
    new_id_timeout_ms: int
    offset_scan_ms: int
    short_interval_ms: int | None
    short_period_ms: int | None
    long_interval_ms: int | None
    long_period_ms: int | None
    forget_after_ms: int | None
    max_missing: int
    retry_attempts: int
    min_retry_ms: int
    max_retry_ms: int
    retry_jitter: float
    partition_size: int
    gap_free: bool
    journal_gap_timeout_ms: int
    verbose: bool

    @classmethod
    def of(cls, config: PekkoConfig) -> Self:
        """Check and convert; InvalidConfig names the setting that is wrong."""
        try:
            # From a file they were checked already; a caller's own object was not.
            config = msgspec.convert(msgspec.to_builtins(config), PekkoConfig)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"[pekko] {error}") from error
        buckets = Buckets.of(config.bucket_size)
        cleanup = config.cleanup_old_persistence_ids
        found = cls(
            buckets=buckets,
            first_bucket=buckets.parse(config.first_time_bucket),
            hold_all=config.hold == "tag",
            page_size=config.page_size,
            refresh_ms=_ms(config.refresh_interval),
            delay_ms=_ms(config.eventual_consistency_delay),
            gap_timeout_ms=_ms(config.gap_timeout),
            new_id_timeout_ms=_ms(config.new_persistence_id_scan_timeout),
            offset_scan_ms=_ms(config.offset_scanning_period),
            short_interval_ms=_ms_unless(config.back_track_interval),
            short_period_ms=_ms_unless(config.back_track_period),
            long_interval_ms=_ms_unless(config.back_track_long_interval),
            long_period_ms=_ms_unless(config.back_track_long_period),
            forget_after_ms=2 * buckets.size if cleanup == "default" else _ms_unless(cleanup),
            max_missing=config.max_missing_to_search,
            retry_attempts=config.retry_attempts,
            min_retry_ms=_ms(config.retry_min_backoff),
            max_retry_ms=_ms(config.retry_max_backoff),
            retry_jitter=config.retry_random_factor,
            partition_size=config.target_partition_size,
            gap_free=config.gap_free_sequence_numbers,
            journal_gap_timeout_ms=_ms(config.events_by_persistence_id_gap_timeout),
            verbose=config.verbose_debug_logging,
        )
        found._check()
        return found

    def _check(self) -> None:
        if self.long_interval_ms is not None:
            if self.short_interval_ms is None:
                raise InvalidConfig("[pekko] back_track_long_interval needs back_track_interval: set it, or both off")
            if self.short_interval_ms >= self.long_interval_ms:
                raise InvalidConfig("[pekko] back_track_interval must be shorter than back_track_long_interval")
        if self.forget_after_ms is not None:
            periods = (("back_track_period", self.short_period_ms), ("back_track_long_period", self.long_period_ms))
            for name, period in periods:
                if period is not None and period >= 0.9 * self.forget_after_ms:
                    raise InvalidConfig(
                        f"[pekko] {name} must be shorter than 0.9 of cleanup_old_persistence_ids "
                        f"({self.forget_after_ms / 1000:g} s): else it finds journals that were forgotten meanwhile"
                    )
        if self.retry_attempts == 0:
            raise InvalidConfig("[pekko] retry_attempts counts the first try: at least 1, or -1 forever")
        if self.min_retry_ms > self.max_retry_ms:
            raise InvalidConfig("[pekko] retry_min_backoff must not be above retry_max_backoff")

    def warn(self) -> None:
        """Say what is allowed but unwise; once, when a reader is made."""
        if self.buckets.name == "second":
            logger.warning("[pekko] bucket_size Second is for tests: every second is a query of its own")
        if self.delay_ms < 2000:
            level = logging.WARNING if self.delay_ms < 1000 else logging.INFO
            logger.log(
                level, "[pekko] eventual_consistency_delay below 2 s: events that become visible late are missed"
            )
        if self.forget_after_ms is not None and self.forget_after_ms < 2 * self.buckets.size:
            logger.warning(
                "[pekko] cleanup_old_persistence_ids is less than two buckets: journals of the last two stay known"
            )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _ms_unless(value: float | str) -> int | None:
    return None if isinstance(value, str) else _ms(value)
