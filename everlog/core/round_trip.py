"""Whether an instance comes back from its JSON as it was. That it can be decoded does not say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec


def decode_model(kind: type, value: Any) -> Any:
    """For decoders: a field that is a pydantic model, which is known by its method."""
    read = getattr(kind, "model_validate_json", None)
    if read is None:
        raise NotImplementedError(f"fields of the type {kind.__name__} cannot be read from JSON")
    return read(msgspec.json.encode(value))


def changed_field(before: Any, after: Any) -> str | None:
    """The first field, as `address.town`, that is not what it was; None if all are.

    Only fields count: a class may have no equality of its own, and a pydantic model has private attributes.

    >>> changed_field(msgspec.defstruct("Sold", ["seats"])({1: "a"}), msgspec.defstruct("Sold", ["seats"])({"1": "a"}))
    'seats'
    """
    for name in field_names(type(before)):
        inner = _change(getattr(before, name), getattr(after, name))
        if inner is not None:
            return f"{name}.{inner}" if inner else name
    return None


def _change(one: Any, other: Any) -> str | None:
    """The field inside that is not what it was; empty if it is this value itself, None if nothing changed."""
    if one == other:
        return None
    if type(one) is not type(other):
        return ""
    if field_names(type(one)):
        return changed_field(one, other)
    if isinstance(one, dict) and one.keys() == other.keys():
        return _first_change([(value, other[key]) for key, value in one.items()])
    if isinstance(one, list | tuple) and len(one) == len(other):
        return _first_change(list(zip(one, other, strict=True)))
    return ""


def _first_change(pairs: Sequence[tuple[Any, Any]]) -> str | None:
    return next((found for found in (_change(*pair) for pair in pairs) if found is not None), None)


def field_names(kind: type) -> Sequence[str]:
    """The fields of a dataclass, a msgspec Struct or a pydantic model; of other classes none."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    found: dict[str, Any] = getattr(kind, "model_fields", {})
    return tuple(found)
