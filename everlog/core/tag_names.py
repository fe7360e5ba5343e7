"""What a tag may be called, and the tags that Everlog makes itself.

A zero character is not part of any user's tag: it sets apart the shards of a hot tag (`eu\\0` and a number) and the
built-in tags of slices.
"""

from __future__ import annotations

from functools import lru_cache

from everlog.core.values import java_hash, plain_text, shown
from everlog.errors import InvalidRange, InvalidTag

MAX_TAG_BYTES = 1024
SLICES = 1024
SLICE_TAGS = 64
PER_SLICE_TAG = SLICES // SLICE_TAGS
_APART = "\0"


def check_tag(tag: str) -> str:
    """The tag, or an error that says what is wrong with it."""
    if not isinstance(tag, str) or not tag:
        raise InvalidTag(f"a tag is text that is not empty, not {shown(tag)}")
    if _APART in tag:
        raise InvalidTag(f"a tag must not contain a zero character: {shown(tag)}")
    try:
        size = len(tag.encode())
    except UnicodeEncodeError as error:
        raise InvalidTag(f"the tag {shown(tag)} is not valid Unicode text") from error
    if size > MAX_TAG_BYTES:
        raise InvalidTag(f"this tag has {size:,} bytes, at most {MAX_TAG_BYTES:,} are allowed")
    return plain_text(tag)


@lru_cache(maxsize=10_000)
def is_tag(tag: str) -> bool:
    """Whether events get into a view by this tag. Others write into the log, too, and may put anything there."""
    try:
        check_tag(tag)
    except InvalidTag:
        return False
    return True


def shard_of(journal_id: str, shards: int) -> int:
    """Which shard of a hot tag takes a journal's events."""
    return abs(java_hash(journal_id)) % shards


def stored_tag(tag: str, shard: int | None) -> str:
    """The name under which a tag's rows are stored: its own, or that of a shard.

    >>> stored_tag("eu", 3)
    'eu\\x003'
    """
    return tag if shard is None else f"{tag}{_APART}{shard}"


def slice_of(journal_id: str) -> int:
    """The slice of a journal, from 0 to 1023.

    >>> slice_of("order-1")
    654
    """
    return abs(java_hash(journal_id)) % SLICES


def check_slices(first: int, last: int) -> None:
    """A range of slices, both ends included."""
    numbers = all(isinstance(number, int) and not isinstance(number, bool) for number in (first, last))
    if not numbers or not 0 <= first <= last < SLICES:
        raise InvalidRange(
            f"slices go from 0 to {SLICES - 1}, the first must not be above the last: not {shown((first, last))}"
        )


def slice_part(number: int) -> str:
    """The part of all slices that this one is in: those of one built-in tag. Projections keep an offset for each.

    >>> slice_part(654)
    'slices-640-655'
    """
    first = number - number % PER_SLICE_TAG
    return f"slices-{first}-{first + PER_SLICE_TAG - 1}"


def slice_tag(number: int) -> str:
    """The built-in tag that holds this slice, together with its fifteen neighbours."""
    return f"{_APART}slice-{number // PER_SLICE_TAG:02}"


def is_built_in(tag: str) -> bool:
    """Whether Everlog made this tag itself."""
    return tag.startswith(_APART)
