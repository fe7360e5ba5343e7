"""Parts of a source that move from key to key, because it is divided anew: what belongs to them comes along.

A key claims its parts before it reads where they are. From then on an owner of another division, which may still run,
stores no offset of them any more. What was wanted of the keys that had them is wanted of the new one, and dead letters
move to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from everlog.projections.offsets import Offset, Single
from everlog.projections.port import Desired, KnownProjection
from everlog.projections.source import Feed


def parts_of(offset: str) -> set[str]:
    """The parts that an offset is of, in the text that names a dead letter or a skip.

    >>> parts_of("journal-orders-3=17"), parts_of("slices-0-15=a..slices-16-31=b")
    ({'journal-orders-3'}, {'slices-0-15'})
    """
    return {one.rpartition("=")[0] for one in offset.partition("..")[0].split(",")}


def wanted_of(key: str, owners: Collection[str], desired: Mapping[str, Desired], parts: Collection[str]) -> Desired:
    """What is wanted of a key that claims parts which these keys had: it is paused if one of them is.

    What was wanted of the key itself counts if it had one of them; else it is from an earlier division.
    """
    found = [desired.get(one, Desired()) for one in sorted(owners)]
    skips = dict.fromkeys(skip for one in found for skip in one.skips if parts_of(skip) <= set(parts))
    before = desired.get(key, Desired())
    return replace(before, paused=any(one.paused for one in found), skips=tuple(skips))


def current_division(known: Sequence[KnownProjection]) -> list[KnownProjection]:
    """Without the keys of earlier divisions of a source: what they had belongs to others now."""
    newest: dict[str, tuple[int, object]] = {}
    for one in known:
        epoch = 0 if one.lease is None else one.lease.epoch
        if "split" in one.report.source and epoch >= newest.get(one.name, (0, None))[0]:
            newest[one.name] = (epoch, one.report.source)
    return [one for one in known if "split" not in one.report.source or newest[one.name][1] == one.report.source]


async def divide(feed: Feed, offsets: Mapping[str, Offset | None]) -> dict[str, Offset | None]:
    """Offsets by key, as the keys of this source divide them: those may have been stored by another division."""
    entries: dict[str, Single] = {}
    for offset in offsets.values():
        if offset is not None and not isinstance(offset, Mapping):
            return dict(offsets)
        entries |= offset or {}
    found: dict[str, Offset | None] = {}
    for key in await feed.keys():
        parts = await feed.parts(key)
        if parts is None:
            return dict(offsets)
        found[key] = {part: entries[part] for part in parts if part in entries} or None
    return found
