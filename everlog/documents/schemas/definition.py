"""What may be defined as a schema: limits on everything that a client can make large, and no way out of it.

A reference begins with `#`: it leads into the schema itself. The validator fetches nothing either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from everlog.documents.bodies import encode_body
from everlog.errors import InvalidDocument

MAX_SCHEMAS = 100
MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_REFERENCES = 500
MAX_PATTERNS = 100
MAX_PATTERN = 500
DRAFTS = frozenset(
    {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LITERALS = ("const", "enum", "default", "examples")
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_schema_id(schema_id: str) -> str:
    """The id of a schema; InvalidDocument if it cannot be one."""
    if not _ID.fullmatch(schema_id) or schema_id in (".", ".."):
        raise InvalidDocument("invalid-schema-id", "the id of a schema has 1 to 100 letters, digits and - . _")
    return schema_id


def checked_text(schema: Any) -> str:
    """The schema as it is stored; InvalidDocument if it goes over a limit or leads elsewhere."""
    if not isinstance(schema, dict | bool):
        raise InvalidDocument("invalid-schema", "a schema is a JSON object, or true or false")
    text = encode_body(schema)
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise InvalidDocument("schema-too-large", f"a schema has at most {MAX_SCHEMA_BYTES:,} bytes")
    if isinstance(schema, dict):
        _check_draft(schema)
        _check_parts(schema)
    return text


def _check_draft(schema: dict[str, Any]) -> None:
    draft = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if not isinstance(draft, str) or draft.removesuffix("#") not in DRAFTS:
        raise InvalidDocument(
            "unknown-draft", f"$schema is none of the drafts that are known: {', '.join(sorted(DRAFTS))}"
        )


def _check_parts(schema: dict[str, Any]) -> None:
    references = patterns = 0
    for part, depth in _objects(schema, 1):
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidDocument("schema-too-deep", f"a schema has at most {MAX_SCHEMA_DEPTH} levels")
        for target in (part[name] for name in _REFERENCES if isinstance(part.get(name), str)):
            references += 1
            if not target.startswith("#"):
                raise InvalidDocument(
                    "remote-reference", f"{target[:200]!r} leads out of the schema: a reference begins with '#'"
                )
        for pattern in _patterns(part):
            patterns += 1
            if len(pattern) > MAX_PATTERN:
                raise InvalidDocument("invalid-pattern", f"a pattern has at most {MAX_PATTERN} characters")
    if references > MAX_REFERENCES:
        raise InvalidDocument("schema-too-large", f"a schema has at most {MAX_REFERENCES} references")
    if patterns > MAX_PATTERNS:
        raise InvalidDocument("schema-too-large", f"a schema has at most {MAX_PATTERNS} patterns")


def _patterns(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("pattern"), str):
        yield part["pattern"]
    several = part.get("patternProperties")
    if isinstance(several, dict):
        yield from several


def _objects(value: Any, depth: int) -> Iterator[tuple[dict[str, Any], int]]:
    """All objects but those in literals. What is called `$ref` or `pattern` there is a value, no keyword."""
    if isinstance(value, dict):
        yield value, depth
        for name, inner in value.items():
            if name not in _LITERALS or isinstance(inner, dict):
                yield from _objects(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner, depth + 1)
