"""A part of a body: the named fields, nested ones by their path, as `fields=a,b.c` asks for them.

What a body does not have is left out; lists are not entered; an element keeps its id. A selection changes nothing about
which elements there are, their order, or their tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.documents.bodies import encode_body, stored_body
from everlog.documents.order import parse_field
from everlog.errors import InvalidDocument

MAX_FIELDS = 100
Selected = dict[str, Any]
"""Names to what is selected below them; {}: all of it."""


def parse_fields(names: str | Sequence[str]) -> Selected:
    """Fields of a body, as text with commas or one by one; none means the whole body.

    >>> parse_fields("a, b.c, b.d, a.x")
    {'a': {}, 'b': {'c': {}, 'd': {}}}
    """
    given = [one.strip() for one in (names.split(",") if isinstance(names, str) else names)]
    found: Selected = {}
    if len(given) > MAX_FIELDS:
        raise InvalidDocument("invalid-fields", f"at most {MAX_FIELDS} fields can be asked for")
    for name in given:
        if not name and len(given) == 1:
            return {}
        try:
            path = parse_field(name)
        except InvalidDocument:
            raise InvalidDocument(
                "invalid-fields", f"{name[:100]!r} is not the name of a field: fields=a,b.c"
            ) from None
        _add(found, path)
    return found


def _add(selected: Selected, path: Sequence[str]) -> None:
    first, *rest = path
    if selected.get(first) == {}:
        return  # all of it is there
    if not rest:
        selected[first] = {}
    else:
        _add(selected.setdefault(first, {}), rest)


def select(body: Any, selected: Selected) -> Any:
    """The part of a body.

    >>> select({"a": 1, "b": {"c": 2, "d": 3}}, parse_fields("b.c,x"))
    {'b': {'c': 2}}
    """
    if not isinstance(body, dict):
        return {}
    return {
        name: body[name] if not below else select(body[name], below)
        for name, below in selected.items()
        if name in body and (not below or isinstance(body[name], dict))
    }


def select_from(text: str, selected: Selected, item: str = "") -> str:
    """The part of a stored body; of an element with its id."""
    found = select(stored_body(text), selected)
    return encode_body({**found, "id": item} if item else found)


def select_each(elements: Sequence[Any], selected: Selected) -> str:
    """The part of each element of a list, as JSON. Some may not be decoded yet."""
    bodies = [stored_body(bytes(one).decode()) if isinstance(one, msgspec.Raw) else one for one in elements]
    return encode_body([{**select(element, selected), "id": element["id"]} for element in bodies])
