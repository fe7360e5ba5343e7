"""Templates of paths: `abc/{*}` and `{shop}/orders~/{*}`, for views and template indexes."""

from __future__ import annotations

import functools
import re

from everlog.errors import InvalidDocument

MAX_LENGTH = 1024
_PARAMETER = re.compile(r"\{(\*|[A-Za-z_][A-Za-z0-9_]*)\}")
_TEXT = re.compile(r"[A-Za-z0-9\-._~:/\[\]@!$&'()*+,;=]*")


@functools.lru_cache(maxsize=1000)
def compile_template(template: str) -> re.Pattern[str]:
    """The pattern of a template; every parameter stands for one or more characters without a slash."""
    pieces = _PARAMETER.split(template)
    literals = pieces[::2]
    valid = len(pieces) > 1 and all(_TEXT.fullmatch(piece) for piece in literals) and len(template) <= MAX_LENGTH
    if not valid or template.startswith("/") or template.endswith("/") or "//" in template or "}{" in template:
        raise InvalidDocument(
            "invalid-template", f"{template!r} is no template: it is a path with {{name}} or {{*}} in it"
        )
    return re.compile("([^/]+)".join(re.escape(piece) for piece in literals))


def uri_prefix(template: str) -> str:
    """What the uris of all documents and collections begin with whose paths may match.

    An element's uri ends before its id, so the last segment does not count.

    >>> uri_prefix("shop/orders~/{*}"), uri_prefix("{*}/x")
    ('shop/orders~', '')
    """
    return template.partition("{")[0].rpartition("/")[0]


def match_template(template: str, path: str) -> str | None:
    """The values of the parameters, joined by ':'; None if the path does not match.

    >>> match_template("abc/{*}", "abc/123")
    '123'
    """
    found = compile_template(template).fullmatch(path)
    return None if found is None else ":".join(found.groups())
