"""The one order of JSON values: in memory as tuples, in indexes as bytes, and the sorts that use it.

Missing or null, then booleans, numbers, texts (by code point), and last lists and objects (by a spelling of their
JSON). Sorting in memory and reading an index in its order give the same sequence, whatever the values are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import msgspec

from everlog.documents.filters.budget import Budget
from everlog.documents.filters.evaluation import field_value
from everlog.documents.filters.parser import parse_filter
from everlog.documents.filters.tree import Field, name_text
from everlog.documents.filters.values import weigh
from everlog.errors import InvalidDocument

NULL, BOOLEAN, NUMBER, TEXT, OTHER, END = range(6)
MAX_SORTS = 16
MAX_FIELD_CHARS = 255
PORTION = 1000  # elements that are sorted at once

SortKey: TypeAlias = tuple[Any, ...]
"""(rank, value). A shorter tuple, (rank,), stands before all of its rank; (rank, value, 0) right behind the value."""

_TAGS = (b"\x01", b"\x10", b"\x20", b"\x30", b"\x40", b"\x50")
_MIDDLE = 2**63
_FLIP = bytes(255 - number for number in range(256))
_canonical = msgspec.json.Encoder(decimal_format="number", order="deterministic").encode


def key_of(value: Any) -> SortKey:
    """Where a value stands in the order."""
    if value is None:
        return (NULL, 0)
    if isinstance(value, bool):
        return (BOOLEAN, value)
    if isinstance(value, int | Decimal):
        return (NUMBER, value)
    if isinstance(value, str):
        return (TEXT, value)
    return (OTHER, _canonical(_normal(value)).decode())


def _normal(value: Any) -> Any:
    """Equal values in equal spelling: 1.0 is 1."""
    if isinstance(value, dict):
        return {name: _normal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_normal(inner) for inner in value]
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        sign, digits, exponent = _digits(value)
        return f"{sign}{digits}e{exponent}"
    return [value] if isinstance(value, str) else value  # so that no text looks like a number


def _digits(number: int | Decimal) -> tuple[str, str, int]:
    """Sign, digits without zeros at either end, and exponent, so that the number is 0.digits times 10^exponent."""
    sign, digits, exponent = Decimal(number).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    exponent += len(text)
    text = text.rstrip("0")
    return "-" if sign and text else "", text, exponent if text else 0


def encode_key(key: SortKey) -> bytes:
    """A key as bytes that sort alike, and none of which begins with another."""
    rank = key[0]
    if rank == NULL:
        return _TAGS[NULL]
    if rank == BOOLEAN:
        return b"\x11" if key[1] else b"\x10"
    if rank == NUMBER:
        return _encode_number(key[1])
    text: str = key[1]
    return _TAGS[rank] + text.encode("utf-8", "surrogatepass").replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _encode_number(number: int | Decimal) -> bytes:
    sign, digits, exponent = _digits(number)
    if not digits:
        return b"\x21"
    if len(digits) % 2:
        digits += "0"
    pairs = bytes(int(digits[at : at + 2]) + 1 for at in range(0, len(digits), 2))
    magnitude = (exponent + _MIDDLE).to_bytes(8, "big") + pairs + b"\x00"
    return b"\x20" + magnitude.translate(_FLIP) if sign else b"\x22" + magnitude


def encode_directed(key: SortKey, *, descending: bool) -> bytes:
    """The same, and in the opposite order if wanted."""
    encoded = encode_key(key)
    return encoded.translate(_FLIP) if descending else encoded


def cut(bound: SortKey, *, descending: bool) -> bytes:
    """The bytes that part what is before a bound from what is not; the first byte is never 255."""
    if len(bound) == 1:
        tag = _TAGS[bound[0]]
        return bytes((256 - tag[0],)) if descending else tag
    encoded = encode_directed(bound[:2], descending=descending)
    behind = len(bound) == 3
    return encoded + b"\xff" if behind is not descending else encoded


class SortItem(NamedTuple):
    """A field to sort by."""

    names: tuple[str, ...]
    descending: bool = False

    def __str__(self) -> str:
        return ("-" if self.descending else "") + name_text(self.names)


ID = ("id",)
Sort: TypeAlias = tuple[SortItem, ...]
BY_ID: Sort = (SortItem(ID),)


def parse_field(text: str) -> tuple[str, ...]:
    """A field's name: identifiers with dots between them."""
    try:
        # Bounded, because it is read on the event loop, and up to 16 of them.
        node = parse_filter(text) if len(text) <= MAX_FIELD_CHARS else None
    except InvalidDocument:
        node = None
    if not isinstance(node, Field):
        name = text if len(text) <= MAX_FIELD_CHARS else f"{text[:50]}…"
        message = f"{name!r} is not the name of a field, which has at most {MAX_FIELD_CHARS} characters"
        raise InvalidDocument("invalid-field", message)
    return node.names


def parse_sort(text: str) -> Sort:
    """`-field1, +field2`; spaces and empty items do not count.

    >>> [str(item) for item in parse_sort(" -b  , +a")]
    ['-b', 'a']
    """
    items = []
    for part in text.split(","):
        item = part.strip()
        if not item:
            continue
        descending = item.startswith("-")
        try:
            items.append(SortItem(parse_field(item[item[0] in "+-" :].strip()), descending))
        except InvalidDocument:
            message = f"{item[:50]!r} in the sort is not the name of a field, of at most {MAX_FIELD_CHARS} characters"
            raise InvalidDocument("invalid-sort", message) from None
        if len(items) > MAX_SORTS:
            raise InvalidDocument("invalid-sort", f"a sort has at most {MAX_SORTS} fields")
    return tuple(items)


def complete(sort: Sequence[SortItem]) -> Sort:
    """A sort without ties: fields once each, up to the id; without it, the id in the direction of the last field."""
    items: dict[tuple[str, ...], SortItem] = {}
    for item in sort:
        items.setdefault(item.names, item)
        if item.names == ID:
            return tuple(items.values())
    last = list(items.values())[-1].descending if items else False
    return (*items.values(), SortItem(ID, last))


def keys_of(element: Any, sort: Sequence[SortItem], budget: Budget | None = None) -> tuple[SortKey, ...]:
    """The element's values for a sort. The spelling of lists and objects is charged to the budget."""
    values = [field_value(element, item.names) for item in sort]
    if budget is not None:
        budget.take(5 * len(values))
        for value in values:
            if isinstance(value, list | dict):
                budget.take(weigh(value, budget) >> 2)
    return tuple(map(key_of, values))


def compare_keys(left: Sequence[SortKey], right: Sequence[SortKey], sort: Sequence[SortItem]) -> int:
    """-1, 0 or 1: how two elements follow each other in a sort."""
    for one, other, item in zip(left, right, sort, strict=True):
        if one != other:
            return 1 if (one > other) is not item.descending else -1
    return 0


class FirstElements:
    """The first `size` of some elements, in the order of a sort that has no ties: they are taken in portions.

    What a portion costs is charged before it is sorted. It may be taken again if that did not suffice.
    """

    def __init__(self, elements: Sequence[Any], sort: Sort, size: int, *, portion: int = PORTION) -> None:
        self._portion = portion
        self._waiting = elements
        self._sort = sort
        self._size = size
        self._at = 0
        self._best: list[tuple[tuple[SortKey, ...], Any]] = []

    def take(self, budget: Budget) -> list[Any]:
        """Take all portions, and say which are the first."""
        while self._at < len(self._waiting):
            portion = self._waiting[self._at : self._at + self._portion]
            found = self._best + [(keys_of(element, self._sort, budget), element) for element in portion]
            longest = sum(_length(key) for keys, _ in found for key in keys)
            budget.take((len(found) * len(self._sort) + (longest >> 5)) * len(found).bit_length() // 2)
            for place in range(len(self._sort) - 1, -1, -1):
                found.sort(key=functools.partial(_key_at, place), reverse=self._sort[place].descending)
            self._best = found[: self._size]
            self._at += len(portion)
            budget.done()
        return [element for _, element in self._best]


def _key_at(place: int, found: tuple[tuple[SortKey, ...], Any]) -> SortKey:
    return found[0][place]


def _length(key: SortKey) -> int:
    return len(key[1]) if isinstance(key[1], str) else 0


def index_key(element: Any, sort: Sort, budget: Budget | None = None) -> bytes:
    """An element's place in an index whose complete sort this is."""
    return b"".join(
        encode_directed(key, descending=item.descending)
        for key, item in zip(keys_of(element, sort, budget), sort, strict=True)
    )
