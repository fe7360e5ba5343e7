"""Where a document lives: paths, what they name, and the partition and quantum of an outbox row.

The invariant: a path is the same text wherever it stands, in a link, an event, a feed or a transaction id, and no two
different paths look like one address. So it is any Unicode text but what an address, a terminal or a reader would take
for something else: control characters, separators of lines, marks that turn the direction of text, half of a surrogate
pair, noncharacters, a byte order mark; empty segments, and the segments `.` and `..`. Its characters are kept as they
come: nothing is normalised, so `é` and `e` with an accent are two paths. A slash separates segments however it was
encoded: `%2F` is `/`. Lengths are those of UTF-8.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Literal, NamedTuple

from everlog.errors import InvalidDocument

MAX_URI_BYTES = 1024
MAX_ITEM_BYTES = 255
PARTITIONS = 1024
QUANTUM_MS = 60_000

# Of every plane the last two code points are no characters, and U+FDD0 to U+FDEF.
_NONCHARACTERS = "\ufdd0-\ufdef" + "".join(
    chr(plane * 0x10000 + end) for plane in range(17) for end in (0xFFFE, 0xFFFF)
)
FORBIDDEN = re.compile(
    f"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff{_NONCHARACTERS}]"
)
_DOTS = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")

PathKind = Literal["document", "collection", "element"]


class DocumentPlace(NamedTuple):
    """A path, taken apart: the document's uri, and the element's id ("" if it names no element)."""

    uri: str
    item: str = ""

    @property
    def kind(self) -> PathKind:
        if self.item:
            return "element"
        return "collection" if self.uri.endswith("~") else "document"

    @property
    def path(self) -> str:
        return f"{self.uri}/{self.item}" if self.item else self.uri

    @property
    def in_collection(self) -> bool:
        return self.kind != "document"


def parse_path(path: str) -> DocumentPlace:
    """What a path names; InvalidDocument if it names nothing.

    Only the last two segments matter: an element if the one before the last ends with `~`.

    >>> parse_path("abc~/1")
    DocumentPlace(uri='abc~', item='1')
    >>> parse_path("abc~/1/2").kind
    'document'
    """
    if not isinstance(path, str):
        raise InvalidDocument("invalid-path", f"a path is text, not {type(path).__name__}")
    return _parse(path)


@lru_cache(maxsize=1024)
def _parse(path: str) -> DocumentPlace:
    """Each layer that a request passes asks for the same path."""
    _check_text(path)
    parent, _, last = path.rpartition("/")
    place = DocumentPlace(parent, last) if parent.endswith("~") else DocumentPlace(path)
    if len(place.uri.encode()) > MAX_URI_BYTES:
        raise InvalidDocument("path-too-long", f"a document's path has at most {MAX_URI_BYTES:,} bytes")
    if len(place.item.encode()) > MAX_ITEM_BYTES:
        raise InvalidDocument("invalid-path", f"an element's id has 1 to {MAX_ITEM_BYTES} bytes")
    return place


def _check_text(path: str) -> None:
    """Whether it can be a path at all."""
    if len(path) > MAX_URI_BYTES + 1 + MAX_ITEM_BYTES:
        raise InvalidDocument("path-too-long", f"a document's path has at most {MAX_URI_BYTES:,} bytes")
    if not path or path.startswith("/") or path.endswith("/") or "//" in path:
        raise InvalidDocument("invalid-path", "a path is segments with one '/' between them, none of them empty")
    wrong = FORBIDDEN.search(path)
    if wrong is not None:
        raise InvalidDocument(
            "invalid-path", f"a path has no control or format character such as U+{ord(wrong[0]):04X}"
        )
    if _DOTS.search(path):
        raise InvalidDocument("invalid-path", "'.' and '..' are no segments of a path: browsers take them for folders")


def parse_collection(path: str) -> str:
    """The uri of a collection; InvalidDocument if the path names something else."""
    place = parse_path(path)
    if place.kind != "collection":
        raise InvalidDocument("not-a-collection", f"{path!r} is no collection: the path of one ends with '~'")
    return place.uri


def partition_of_uri(uri: str, partitions: int = PARTITIONS) -> int:
    """The outbox partition of a document.

    >>> partition_of_uri("abc/123"), partition_of_uri("collection-1~")
    (587, 229)
    """
    return zlib.crc32(uri.encode()) % partitions


def quantum_of(now_ms: int) -> int:
    """The minute that an outbox row belongs to."""
    return now_ms // QUANTUM_MS
