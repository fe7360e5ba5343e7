"""The one configuration: a TOML file, or the defaults below for a bare folder.

Every setting stands here with its default; an unknown one is an error, not a silent typo.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from everlog.errors import InvalidConfig, NotWritable
from everlog.journal.values import DEFAULT_SEGMENT_SIZE, MIN_SEGMENT_SIZE

CONFIG_FILE = "everlog.toml"

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: the embedded log."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    retention_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None
    retention_bytes: Positive | None = None


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[store]`: the embedded store."""

    synchronous: Literal["FULL", "NORMAL"] = "FULL"


class JournalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[journal]`: what appends and reads do."""

    topic_prefix: str = "journal-"
    segment_size: Annotated[int, msgspec.Meta(ge=MIN_SEGMENT_SIZE, le=2**31 - 1)] = DEFAULT_SEGMENT_SIZE
    max_append_bytes: Positive = 1024 * 1024
    append_timeout: Seconds = 30.0
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    snapshots: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    known_journals: Positive = 10_000
    unique_seq_nrs: bool = True
    correlate_events: bool = True


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[pipeline]`: how the log is folded into the tables."""

    max_batch_records: Positive = 200_000
    poll_interval: Seconds = 0.01
    retry_first: Seconds = 0.5
    retry_most: Seconds = 30.0
    expire_every: Seconds = 3600.0
    marker_days: Annotated[int, msgspec.Meta(ge=10)] = 10


class SparkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[spark]`: the session; `conf` takes any `spark.*` setting."""

    master: str = "local[*]"
    memory: str = "1g"
    conf: dict[str, str] = {}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings. `data` is the folder of the embedded log and store."""

    data: str = "everlog-data"
    log: LogConfig = LogConfig()
    store: StoreConfig = StoreConfig()
    journal: JournalConfig = JournalConfig()
    pipeline: PipelineConfig = PipelineConfig()
    spark: SparkConfig = SparkConfig()

    @property
    def folder(self) -> Path:
        return Path(self.data)


def load_config(target: str | os.PathLike[str]) -> Config:
    """The configuration that a folder or a TOML file stands for.

    A folder may hold an `everlog.toml` of its own. A relative `data` is taken from the file's folder.

    >>> load_config("everlog-data").log.partitions
    4
    """
    path = Path(target)
    if path.suffix == ".toml":
        return _read(path, path.parent)
    own = path / CONFIG_FILE
    if own.is_file():
        return msgspec.structs.replace(_read(own, path), data=str(path))
    return Config(data=str(path))


def _read(path: Path, base: Path) -> Config:
    try:
        found = tomllib.loads(path.read_text())
        config = msgspec.convert(found, Config)
    except FileNotFoundError as error:
        raise InvalidConfig(f"there is no file {path}: name a folder, or write one") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"{path}: {error}: see 'everlog --help' or docs/configuration.md for the settings"
        ) from error
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    return msgspec.structs.replace(config, data=str(base / config.data))


def prepare_folder(folder: Path) -> None:
    """Make the data folder, or say why that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (PermissionError, FileExistsError, NotADirectoryError, OSError) as error:
        raise NotWritable(f"the folder {folder} cannot be made: {error.strerror}: choose another one") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NotWritable(f"the folder {folder} is not writable for this user: change its owner or choose another one")
