"""Heads that one worker process leaves for the next: Spark may give a partition's next batch to another one.

They lie in a file of the executor's own folder, one for each log partition, with the offset at which they hold.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from everlog.core.head import Head

logger = logging.getLogger("everlog.pipeline")

_OFFSET = 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Head]).decode


class HandOver(Protocol):
    """Where the heads of a log partition are left, by whoever has done a batch."""

    def leave(self, end: int, heads: Mapping[str, Head]) -> None:
        """All writes of a batch, which ended before this offset, are durable, and these are its heads."""

    def take(self, start: int) -> dict[str, Head]:
        """What was left at just this offset. Whoever takes it is the only one: nothing is left afterwards."""


class HeadsFile:
    """A file of that kind. It saves work, no more: one that cannot be written or read is as good as none."""

    def __init__(self, folder: Path, store: bytes, topic_id: str, partition: int) -> None:
        name = sha256(b"\0".join((store, topic_id.encode()))).hexdigest()[:32]
        self._file = folder / f"heads-{name}-{partition}"
        self._own = self._file.with_name(f"{self._file.name}.{os.getpid()}")

    def leave(self, end: int, heads: Mapping[str, Head]) -> None:
        try:
            with open(self._own, "wb", opener=_private) as file:
                file.write(end.to_bytes(_OFFSET, "big") + _encode(heads))
            self._own.replace(self._file)
        except OSError as error:
            logger.warning("the next worker has to load heads again: %s", error)

    def take(self, start: int) -> dict[str, Head]:
        try:
            self._file.rename(self._own)  # of two at once, one gets it
            with self._own.open("rb") as file:
                here = int.from_bytes(file.read(_OFFSET), "big") == start
                heads = _decode(file.read()) if here else {}
            self._own.unlink()
        except (OSError, msgspec.MsgspecError):
            return {}
        return heads


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
