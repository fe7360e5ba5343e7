"""The schemas of documents in the OpenAPI document: one component each, and where bodies must fit them.

A component stands elsewhere than its schema did, so references are made to lead there. What a reader of OpenAPI would
take for something else, such as anchors, ids or draft 4, is named only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from everlog.documents.schemas.model import DocumentSchema

_CONTENT = "/hyper-storage/content/{path}"
_WRITES = ("put", "post", "patch")
_ELSEWHERE = {"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$dynamicRef", "$recursiveRef"}
_LITERALS = {"const", "enum", "default", "examples"}
_MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}


def with_schemas(document: dict[str, Any], schemas: Sequence[DocumentSchema]) -> dict[str, Any]:
    """The document with what bodies of documents must fit."""
    if not schemas:
        return document
    known = document.get("components", {}).get("schemas", {})
    components = {component_name(one): component(one) for one in schemas}
    found = {**document, "components": {**document.get("components", {}), "schemas": known | components}}
    found["paths"] = dict(document["paths"])
    content = found["paths"][_CONTENT] = copy.deepcopy(document["paths"][_CONTENT])
    lines = [f"`{one.template}`: `{component_name(one)}`" for one in schemas]
    for method in _WRITES:
        if "requestBody" in content.get(method, {}):
            content[method]["requestBody"]["description"] = "What is stored must fit, of " + ", of ".join(lines)
    return found


def component_name(schema: DocumentSchema) -> str:
    return f"document.{schema.schema_id}"


def component(schema: DocumentSchema) -> dict[str, Any]:
    """A schema as a component of the document."""
    body = schema.body
    about = f"What is stored at `{schema.template}` must fit this."
    if isinstance(body, bool):
        return {"description": about} if body else {"description": about, "not": {}}
    if "draft-04" in str(body.get("$schema", "")) or _leads_elsewhere(body):
        return {"description": f"{about} It is at `/hyper-storage/schemas/{schema.schema_id}`."}
    place = f"#/components/schemas/{component_name(schema)}"
    rest = {name: value for name, value in body.items() if name != "$schema"}
    return {"description": about, **_moved(rest, place)}


def _leads_elsewhere(value: Any, *, names: bool = False) -> bool:
    """Whether something stands for another place than a JSON pointer says. `names`: the keys are no keywords."""
    if isinstance(value, list):
        return any(_leads_elsewhere(inner) for inner in value)
    if not isinstance(value, dict):
        return False
    reference = value.get("$ref")
    odd = isinstance(reference, str) and reference != "#" and not reference.startswith("#/")
    if not names and (odd or any(isinstance(value.get(name), str | bool) for name in _ELSEWHERE)):
        return True
    return any(
        _leads_elsewhere(inner, names=not names and name in _MAPS)
        for name, inner in value.items()
        if names or name not in _LITERALS
    )


def _moved(value: Any, place: str, *, names: bool = False) -> Any:
    """The same with references that begin at `place`."""
    if isinstance(value, list):
        return [_moved(inner, place) for inner in value]
    if not isinstance(value, dict):
        return value
    moved: dict[str, Any] = {}
    for name, inner in value.items():
        if not names and name == "$ref" and isinstance(inner, str):
            moved[name] = place + inner.removeprefix("#")
        elif not names and name in _LITERALS:
            moved[name] = inner
        else:
            moved[name] = _moved(inner, place, names=not names and name in _MAPS)
    return moved
