"""Where a document lives: paths, what they name, and the partition and quantum of an outbox row."""

from __future__ import annotations

import re
import zlib
from typing import Literal, NamedTuple

from everlog.errors import InvalidDocument

MAX_URI_BYTES = 1024
MAX_ITEM_BYTES = 255
PARTITIONS = 1024
QUANTUM_MS = 60_000

_ALLOWED = re.compile(r"[A-Za-z0-9\-._~:/\[\]@!$&'()*+,;=]+")

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
    if len(path.encode("utf-8", "surrogatepass")) > MAX_URI_BYTES + 1 + MAX_ITEM_BYTES:
        raise InvalidDocument("path-too-long", f"a document's path has at most {MAX_URI_BYTES:,} bytes")
    if not path or path.startswith("/") or path.endswith("/") or "//" in path:
        raise InvalidDocument("invalid-path", "a path is segments with one '/' between them, none of them empty")
    if not _ALLOWED.fullmatch(path):
        raise InvalidDocument(
            "invalid-path", "a path has letters, digits and - . _ ~ : [ ] @ ! $ & ' ( ) * + , ; = in its segments"
        )
    parent, _, last = path.rpartition("/")
    place = DocumentPlace(parent, last) if parent.endswith("~") else DocumentPlace(path)
    if len(place.uri) > MAX_URI_BYTES:
        raise InvalidDocument("path-too-long", f"a document's path has at most {MAX_URI_BYTES:,} bytes")
    if len(place.item) > MAX_ITEM_BYTES:
        raise InvalidDocument("invalid-path", f"an element's id has 1 to {MAX_ITEM_BYTES} bytes")
    return place


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
