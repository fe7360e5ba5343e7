"""The place between two pages: behind an element, in a sort. As a token it fits into a link, whatever the values are.

A token holds the element's sort values, compressed. Where they are too long for that, it holds what they begin with and
a digest: then the element is read again, and if it is still what it was, its values are exact. If it is gone or
changed, the page begins at what the values began with: elements that begin alike may come twice then, none is left out.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import hashlib
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.order import (
    BOOLEAN,
    NULL,
    NUMBER,
    OTHER,
    TEXT,
    Sort,
    SortKey,
    keys_of,
)
from everlog.errors import InvalidDocument

MAX_TOKEN_CHARS = 2048
MAX_UNPACKED_BYTES = 8 * 1024 * 1024
SHORT_BYTES = 700  # of all values together that are kept where they are too long
SHORT_DIGITS = 20
LAST_CHARACTER = "\U0010ffff"


class PagePlace(NamedTuple):
    """Behind the element with this id and these sort values. `digest`: of the exact values, if these are shortened."""

    id: str
    keys: tuple[SortKey, ...]
    digest: str | None = None

    def fits(self, element: Any, sort: Sort) -> bool:
        """Whether an element still has the values that were shortened."""
        return self.digest == _digest(keys_of(element, sort))


def page_token(element: Any, sort: Sort) -> str:
    """Stands for the place right behind an element."""
    keys = keys_of(element, sort)
    token = _pack([_sort_digest(sort), element["id"], [list(key) for key in keys]])
    if len(token) <= MAX_TOKEN_CHARS:
        return token
    size = SHORT_BYTES // len(keys)
    short = [
        list(_shortened(key, size, descending=item.descending)) for key, item in zip(keys[:-1], sort[:-1], strict=True)
    ]
    return _pack([_sort_digest(sort), element["id"], [*short, list(keys[-1])], _digest(keys)])


def parse_token(token: str, sort: Sort) -> PagePlace:
    """The place that a token stands for; InvalidDocument if it is of another sort, or none at all."""
    try:
        if len(token) > MAX_TOKEN_CHARS:
            raise ValueError("too long")
        digest, item, keys, *rest = decode_body(_unpack(token))
        if digest != _sort_digest(sort) or len(keys) != len(sort) or not isinstance(item, str) or len(rest) > 1:
            raise ValueError("of another query")
        if keys[-1] != [TEXT, item]:
            raise ValueError("without an id")
        return PagePlace(item, tuple(_key(rank, value) for rank, value in keys), str(rest[0]) if rest else None)
    except (InvalidDocument, ValueError, TypeError, binascii.Error, zlib.error) as error:
        message = "'after' is taken from the link to a next page, of the same sort"
        raise InvalidDocument("invalid-token", message) from error


def _key(rank: int, value: Any) -> SortKey:
    """A key as `key_of` makes it."""
    fits = {
        NULL: value == 0,
        BOOLEAN: isinstance(value, bool),
        NUMBER: isinstance(value, int | Decimal) and not isinstance(value, bool),
        TEXT: isinstance(value, str),
        OTHER: isinstance(value, str),
    }
    if isinstance(rank, bool) or not fits.get(rank, False):
        raise ValueError("no key of a sort")
    return (rank, value)


def _shortened(key: SortKey, size: int, *, descending: bool) -> SortKey:
    """A key that stands before this one, or is it, and after all that begin otherwise."""
    rank, value = key
    if rank in (TEXT, OTHER):
        start = value.encode("utf-8", "surrogatepass")[:size].decode("utf-8", "ignore")
        return key if start == value else (rank, start + LAST_CHARACTER if descending else start)
    if rank == NUMBER and len(str(value)) > SHORT_DIGITS:
        rounding = decimal.ROUND_CEILING if descending else decimal.ROUND_FLOOR
        wide = decimal.Context(prec=SHORT_DIGITS, rounding=rounding, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
        return (rank, wide.plus(Decimal(value)))
    return key


def _digest(keys: Sequence[SortKey]) -> str:
    return _hash(encode_body([list(key) for key in keys]))


def _sort_digest(sort: Sort) -> str:
    return _hash(",".join(map(str, sort)))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


def _pack(value: Any) -> str:
    plain = encode_body(value).encode()
    packed = zlib.compress(plain, 9)
    data = b"z" + packed if len(packed) < len(plain) else b"j" + plain
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpack(token: str) -> bytes:
    data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    if data[:1] == b"j":
        return data[1:]
    if data[:1] != b"z":
        raise ValueError("of another kind")
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(data[1:], MAX_UNPACKED_BYTES)
    if unpacker.unconsumed_tail:
        raise ValueError("too long")
    return found
