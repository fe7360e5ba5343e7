"""Templates of views and of template indexes: which paths match, and which element of a view stands for which path.

A template is a path with parameters, `{name}` or `{*}`, each of which stands for one or more characters without a
slash. An element of a view has the values of the parameters as its id, with ':' between them. That is one to one, so a
view can be put right from its own elements: a ':' can only be in the last value, and another path with one is refused.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from everlog.documents.paths import FORBIDDEN, MAX_ITEM_BYTES, DocumentPlace, parse_path
from everlog.errors import InvalidDocument, MissingExtra

try:
    import re2
except ImportError as error:
    raise MissingExtra("server") from error

MAX_TEMPLATE = 1024
MAX_PARAMETERS = 16
MAX_COMPILED = 1000
_PARAMETER = re.compile(r"\{(\*|[A-Za-z_][A-Za-z0-9_]*)\}")
_NO_TEXT = re.compile(rf"[{{}}]|{FORBIDDEN.pattern}")


@functools.lru_cache(maxsize=MAX_COMPILED)
def compile_template(template: str) -> Any:
    """The pattern of a template. RE2 matches it in linear time, however many parameters a segment has."""
    pieces = _PARAMETER.split(template)
    literals = pieces[::2]
    valid = len(template) <= MAX_TEMPLATE and len(pieces) > 1 and not any(_NO_TEXT.search(piece) for piece in literals)
    if not valid or template.startswith("/") or template.endswith("/") or "//" in template or "}{" in template:
        raise InvalidDocument(
            "invalid-template", f"{template!r} is no template: it is a path with {{name}} or {{*}} in it"
        )
    if len(literals) - 1 > MAX_PARAMETERS:
        raise InvalidDocument("invalid-template", f"a template has at most {MAX_PARAMETERS} parameters")
    return re2.compile("([^/]+)".join(re.escape(piece) for piece in literals))


def uri_prefix(template: str) -> str:
    """What the uris of all documents and collections begin with whose paths may match.

    An element's uri ends before its id, so the last segment does not count.

    >>> uri_prefix("shop/orders~/{*}"), uri_prefix("{*}/x")
    ('shop/orders~', '')
    """
    return template.partition("{")[0].rpartition("/")[0]


def matches(template: str, path: str) -> bool:
    """Whether a path is one of a template's."""
    return compile_template(template).fullmatch(path) is not None


def item_of(template: str, path: str) -> str | None:
    """The id of a view's element: the values of the parameters, joined by ':'; None if the path does not match.

    >>> item_of("abc/{*}", "abc/123"), item_of("{shop}/orders~/{id}", "north/orders~/7")
    ('123', 'north:7')
    """
    found = compile_template(template).fullmatch(path)
    if found is None:
        return None
    values: list[str] = list(found.groups())
    if any(":" in value for value in values[:-1]):
        raise InvalidDocument(
            "ambiguous-id", f"{path}: a ':' in a parameter that is not the last one could mean another element, too"
        )
    item = ":".join(values)
    if len(item.encode()) > MAX_ITEM_BYTES:
        raise InvalidDocument("invalid-path", f"the id {item[:40]}… would have more than {MAX_ITEM_BYTES} bytes")
    return item


def source_of(template: str, item: str) -> DocumentPlace | None:
    """What an element of a view shows; None if it cannot be an element of a view with this template.

    >>> source_of("{shop}/orders~/{id}", "north:7")
    DocumentPlace(uri='north/orders~', item='7')
    """
    literals = _PARAMETER.split(template)[::2]
    values = item.split(":", len(literals) - 2)
    if len(values) != len(literals) - 1:
        return None
    path = "".join(text for pair in zip(literals, (*values, ""), strict=True) for text in pair)
    try:
        return parse_path(path) if item_of(template, path) == item else None
    except InvalidDocument:
        return None


def ids_from(template: str, uri: str) -> tuple[str, str | None] | None:
    """Between which ids of a view the elements of a collection are shown, if they are: from the first one, included, to
    the second one, not included. Others may be in between.

    >>> ids_from("{shop}/orders~/{id}", "north/orders~")
    ('north:', 'north;')
    """
    folder, _, last = template.rpartition("/")
    if _PARAMETER.search(folder) is None:
        return ("", None) if folder == uri else None
    found = compile_template(folder).fullmatch(uri)
    if found is None:
        return None
    start = ":".join(found.groups())
    if _PARAMETER.search(last) is None:
        return start, start + "\0"
    return start + ":", start + ";"  # the character behind ':'
