"""What can be said about a queue: the same names in Python, in TOML and, with hyphens, in XML."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from everlog.core.duration import Duration, duration_text, milliseconds
from everlog.errors import InvalidConfig, InvalidInput

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_CLAIM = 1000
MAX_RATE = 10_000
MAX_SHARDS = 64
MAX_DONE = 100_000
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d*)\s*(ms|s|m|h|d)\s*")
_RATES = ("rate_limit", "rate_limit_per_group")
_LIMITS = ("rate_limit", "max_in_flight", "rate_limit_per_group", "max_in_flight_per_group")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

BucketPeriod = Literal["hour", "day", "month", "none"]
OnEmpty = Literal["delete", "reset", "truncate"]
OnBusy = Literal["successor", "parallel", "restart", "reject", "drop"]


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in any window of `window_ms` milliseconds."""

    count: int
    window_ms: int


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one queue as the rules use them: durations in milliseconds."""

    processing_timeout_ms: int = 3_600_000
    max_processing_timeout_ms: int = 86_400_000
    max_timeouts: int = 5
    lifetime_timeouts: int = 50
    max_wait_ms: int = 0
    merge: bool = True
    on_busy: OnBusy = "successor"
    late_packets: Literal["merge", "ignore"] = "merge"
    retry_backoff_ms: int = 0
    max_retry_backoff_ms: int = 86_400_000
    slow_threshold: int | None = None
    aging_ms: int = 0
    dead_letter_ttl_ms: int = 14 * 86_400_000
    keep_done_ms: int = 0
    max_done: int = 10_000
    rate_limit: Rate | None = None
    max_in_flight: int | None = None
    rate_limit_per_group: Rate | None = None
    max_in_flight_per_group: int | None = None
    clock_tolerance_ms: int = 5000
    bucket: BucketPeriod = "day"
    on_empty: OnEmpty = "truncate"
    max_buckets: int = 8
    secure: bool = False
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    backlog_ms: int = 0


class QueueOptions(
    msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Options of a queue, as users write them. Durations are text such as "1h", or seconds.

    >>> QueueOptions(max_wait="1m", on_busy="drop").settings.max_wait_ms
    60000
    """

    processing_timeout: Duration = "1h"
    max_processing_timeout: Duration = "1d"
    max_timeouts: Annotated[int, msgspec.Meta(ge=1, le=255)] = 5
    lifetime_timeouts: Annotated[int, msgspec.Meta(ge=1)] = 50
    max_wait: Duration = "0s"
    merge: bool = True
    on_busy: OnBusy = "successor"
    late_packets: Literal["merge", "ignore"] = "merge"
    retry_backoff: Duration = "0s"
    max_retry_backoff: Duration = "1d"
    slow_threshold: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    aging: Duration = "0s"
    dead_letter_ttl: Duration = "14d"
    keep_done: Duration = "0s"
    max_done: Annotated[int, msgspec.Meta(ge=1, le=MAX_DONE)] = 10_000
    rate_limit: str | None = None
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)] | None = None
    rate_limit_per_group: str | None = None
    max_in_flight_per_group: Annotated[int, msgspec.Meta(ge=1)] | None = None
    clock_tolerance: Duration = "5s"
    bucket: BucketPeriod = "day"
    on_empty: OnEmpty = "truncate"
    max_buckets: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    secure: bool = False
    max_payload_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAYLOAD_BYTES)] = MAX_PAYLOAD_BYTES
    backlog: Duration = "0s"
    placement: Literal["dedicated", "shared"] = "dedicated"
    replication: Annotated[int, msgspec.Meta(ge=1)] = 3
    shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)] = 1
    file: str | None = None

    def __post_init__(self) -> None:
        try:
            settings = compile_settings(self)
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        if not 1 <= settings.processing_timeout_ms <= settings.max_processing_timeout_ms:
            raise ValueError("processing_timeout is between 1 ms and max_processing_timeout")
        if self.shards > 1 and any(getattr(self, limit) is not None for limit in _LIMITS):
            raise ValueError(f"{', '.join(_LIMITS)} are exact because one process counts: they need shards = 1")
        if self.file is not None and (self.bucket != "none" or not Path(self.file).is_absolute()):
            raise ValueError("a queue in a file of yours has bucket = 'none', and file is an absolute path")

    @cached_property
    def settings(self) -> QueueSettings:
        """The options as the rules use them."""
        return compile_settings(self)


@lru_cache(maxsize=1000)
def compile_settings(options: QueueOptions) -> QueueSettings:
    """Durations in milliseconds, the rate limit taken apart."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(QueueSettings):
        option = field.name.removesuffix("_ms")
        value = getattr(options, option)
        if option in _DURATIONS:
            try:
                value = milliseconds(value)
            except InvalidInput as error:
                raise InvalidInput(f"{option}: {error}") from error
        found[field.name] = value
    for option in _RATES:
        rate = getattr(options, option)
        found[option] = None if rate is None else parse_rate(rate, option)
    return QueueSettings(**found)


_DURATIONS = frozenset(field.name for field in msgspec.structs.fields(QueueOptions) if field.type == Duration)


def parse_rate(text: str, option: str = "rate_limit") -> Rate:
    """A rate such as "10/s", "100/m" or "3/10s".

    >>> parse_rate("3/10s")
    Rate(count=3, window_ms=10000)
    """
    match = _RATE.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= MAX_RATE or match[2] == "0":
        raise InvalidInput(f"{option}: {text!r} is not a rate such as '10/s' or '100/m', at most {MAX_RATE} starts")
    return Rate(int(match[1]), int(match[2] or 1) * _UNIT_MS[match[3]])


def make_options(**options: Any) -> QueueOptions:
    """Options from Python: checked, with an error that names the one that is wrong.

    >>> make_options(max_wait=timedelta(minutes=1)).max_wait
    '1m'
    """
    plain = {
        name: duration_text(milliseconds(value)) if isinstance(value, timedelta) else value
        for name, value in options.items()
        if value is not None
    }
    try:
        return msgspec.convert(plain, QueueOptions)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidConfig(f"options of a queue: {error}: see docs/queues-operating.md") from error


def check_name(name: object) -> str:
    """The name of a queue, which is also the name of a file."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"a queue's name is at most 100 letters, digits, '_', '-', '.', the first a letter or '_': not {name!r}"
        )
    return name
