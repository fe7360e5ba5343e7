"""Index definitions: how they are asked for, and what they mean."""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import Literal

import msgspec

from everlog.documents.filters.evaluation import uses_time
from everlog.documents.filters.parser import parse_filter
from everlog.documents.filters.tree import FilterNode
from everlog.documents.order import MAX_SORTS, Sort, SortItem, complete, parse_field
from everlog.documents.paths import MAX_ITEM_BYTES
from everlog.errors import InvalidDocument

MAX_KEY_BYTES = 16 * 1024
MAX_INDEXES = 64  # of a collection, besides those of templates


class IndexStatus(IntEnum):
    """The life of an index. A failed one stays to be looked at, is not used, and can only be deleted."""

    INDEXING = 0
    DELETING = 1
    READY = 2
    FAILED = 3


class IndexSortItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A field of an index. The index keeps values of every type, whatever `fieldType` says."""

    field_name: str
    field_type: Literal["text", "decimal"] = "text"
    order: Literal["asc", "desc"] = "asc"


class IndexNew(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a user asks for."""

    index_id: str | None = None
    sort_by: tuple[IndexSortItem, ...] = ()
    filter_by: str | None = None


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """An index of a collection. `definition_id` tells two indexes apart that had the same name one after the other."""

    index_id: str
    sort_by: tuple[IndexSortItem, ...]
    filter_by: str | None
    status: IndexStatus
    definition_id: str
    built_to: str = ""
    revision: int = 0
    count: int | None = 0  # None: the store does not count
    reason: str | None = None
    since: int = 0
    """The collection's revision when the index was defined: an older deletion of the collection does not touch it."""

    @property
    def sort(self) -> Sort:
        """The order of the index, the id included."""
        return _sort(self.sort_by)

    @property
    def condition(self) -> FilterNode | None:
        return None if self.filter_by is None else parse_filter(self.filter_by)


@functools.lru_cache(maxsize=1000)
def _sort(items: tuple[IndexSortItem, ...]) -> Sort:
    return complete([SortItem(parse_field(item.field_name), item.order == "desc") for item in items])


def check_index(new: IndexNew) -> IndexNew:
    """The same without an empty filter, or InvalidDocument that says what is wrong."""
    if new.index_id is not None and not (
        1 <= len(new.index_id.encode()) <= MAX_ITEM_BYTES and new.index_id.isprintable() and "/" not in new.index_id
    ):
        raise InvalidDocument("invalid-index", f"an index id has 1 to {MAX_ITEM_BYTES} printable bytes and no '/'")
    if len(new.sort_by) > MAX_SORTS:
        raise InvalidDocument("invalid-index", f"an index has at most {MAX_SORTS} fields")
    names = [parse_field(item.field_name) for item in new.sort_by]
    if len(set(names)) < len(names):
        raise InvalidDocument("invalid-index", "a field stands twice in sortBy")
    if ("id",) in names[:-1]:
        raise InvalidDocument("invalid-index", "nothing can follow the id in sortBy: ids are unique")
    condition = None if new.filter_by is None else parse_filter(new.filter_by)
    if uses_time(condition):
        raise InvalidDocument("invalid-filter", "an index cannot depend on the time: unix_time() is not allowed here")
    return new if condition is not None else msgspec.structs.replace(new, filter_by=None)
