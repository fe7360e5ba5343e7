"""What a schema is for: all documents and elements that match its template.

`shop/orders~` are the elements of a collection, `shop/{*}~` those of every collection right under `shop/`,
`shop/{*}~/{*}` the same, `people/{*}` documents, `settings` one document.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from everlog.documents.paths import DocumentPlace, parse_path
from everlog.documents.templates import compile_template, uri_prefix


@functools.lru_cache(maxsize=1000)
def compile_target(template: str) -> Any:
    """The pattern of a template, which may have no parameter; InvalidDocument if it names nothing."""
    if "{" in template:
        return compile_template(template)
    return re.compile(re.escape(parse_path(template).path))


def applies(template: str, place: DocumentPlace) -> bool:
    """Whether a schema is for this place. A collection as such has no body, so no schema is for it.

    >>> applies("orders~", DocumentPlace("orders~", "1")), applies("orders~", DocumentPlace("orders~"))
    (True, False)
    """
    if place.kind == "collection":
        return False
    path = place.uri if place.item and template.endswith("~") else place.path
    return compile_target(template).fullmatch(path) is not None


def whole_collection(template: str) -> str | None:
    """The only collection that a template is for, if it is for elements of one; these can be read in order.

    >>> whole_collection("shop/orders~"), whole_collection("orders~/{*}"), whole_collection("{*}~")
    ('shop/orders~', 'orders~', None)
    """
    uri = template if template.endswith("~") else template.rpartition("/")[0]
    return uri if uri.endswith("~") and "{" not in uri else None


def place_prefix(template: str) -> str:
    """What the uris of all documents begin with that a template may be for.

    >>> place_prefix("settings"), place_prefix("people/{*}")
    ('settings', 'people')
    """
    return uri_prefix(template) if "{" in template else parse_path(template).uri
