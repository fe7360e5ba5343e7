"""Pages: the token that says where the next one begins, and the filter that says the same about ids."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.filters.evaluation import field_value
from everlog.documents.filters.nodes import Binary, Field, FilterNode, Literal, conjuncts, text_of
from everlog.documents.order import ID, Sort, SortKey, key_of
from everlog.errors import InvalidDocument

MAX_TOKEN = 4096


def page_token(element: Any, sort: Sort) -> str | None:
    """Stands for the place right behind an element in a sort; None if its values are too long for a link."""
    values = [field_value(element, item.names) for item in sort]
    data = encode_body([",".join(map(str, sort)), values]).encode()
    token = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    return token if len(token) <= MAX_TOKEN else None


def parse_token(token: str, sort: Sort) -> Sequence[SortKey]:
    """The sort values of the element before the page; InvalidDocument if the token is of another query."""
    try:
        if len(token) > MAX_TOKEN:
            raise ValueError("too long")
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        text, values = decode_body(data)
        if text != ",".join(map(str, sort)) or len(values) != len(sort) or not isinstance(values[-1], str):
            raise ValueError("of another query")
    except (InvalidDocument, ValueError, TypeError, binascii.Error) as error:
        message = "'after' is taken from the link to a next page, of the same sort"
        raise InvalidDocument("invalid-token", message) from error
    return tuple(key_of(value) for value in values)


def behind(condition: FilterNode | None, last_id: str, *, descending: bool) -> str:
    """A filter for what follows an id; an older bound of the same kind gives way.

    >>> from everlog.documents.filters.parser import parse_filter
    >>> behind(parse_filter('id > "a" and b > 0'), "c", descending=False)
    '(id > "c") and (b > 0)'
    """
    operator = "<" if descending else ">"
    bound: FilterNode = Binary(operator, Field(ID), Literal(last_id))
    kept = [one for one in conjuncts(condition) if not _is_bound(one, operator)]
    whole = bound
    for one in kept:
        whole = Binary("and", whole, one)
    return text_of(whole)


def _is_bound(node: FilterNode, operator: str) -> bool:
    return (
        isinstance(node, Binary)
        and node.operator == operator
        and node.left == Field(ID)
        and isinstance(node.right, Literal)
        and isinstance(node.right.value, str)
    )
