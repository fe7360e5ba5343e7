"""The syntax tree of a filter, and the tree as text again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from everlog.documents.bodies import encode_body

_PLAIN = re.compile(r"(?:[^\W\d]|\$)[\w$]*")
KEYWORDS = frozenset(("or", "xor", "and", "has", "not", "like", "true", "false", "null"))


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: any JSON value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the element, nested ones by several names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """`!` or `-`."""

    operator: str
    operand: FilterNode


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands; the operator as it is written."""

    operator: str
    left: FilterNode
    right: FilterNode


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function; its name is the newer spelling."""

    name: str
    arguments: tuple[FilterNode, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, some items of which are not constant."""

    items: tuple[FilterNode, ...]


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object, some values of which are not constant."""

    pairs: tuple[tuple[str, FilterNode], ...]


@dataclass(frozen=True, slots=True)
class Template:
    """`s"…${…}…"`: texts and expressions, one after the other."""

    parts: tuple[FilterNode, ...]


FilterNode: TypeAlias = Literal | Field | Unary | Binary | FunctionCall | ListOf | ObjectOf | Template

BOOLEAN_OPERATORS = frozenset(("=", "!=", "<", "<=", ">", ">=", "has", "has not", "like", "not like"))


def conjuncts(node: FilterNode | None) -> Iterator[FilterNode]:
    """The parts that are all true whenever the whole is: through `and`, never below anything else."""
    if node is None:
        return
    if isinstance(node, Binary) and node.operator == "and":
        yield from conjuncts(node.left)
        yield from conjuncts(node.right)
    else:
        yield node


def is_boolean(node: FilterNode) -> bool:
    """Whether the value is true or false, whenever there is one."""
    if isinstance(node, Literal):
        return isinstance(node.value, bool)
    if isinstance(node, Unary):
        return node.operator == "!"
    if isinstance(node, FunctionCall):
        return node.name in ("empty", "exists")
    return isinstance(node, Binary) and node.operator in BOOLEAN_OPERATORS


def name_text(names: tuple[str, ...]) -> str:
    """A field's name as it is written in filters and sorts.

    >>> name_text(("a b", "c"))
    '`a b`.c'
    """
    return ".".join(
        name if _PLAIN.fullmatch(name) and name not in KEYWORDS else "`" + name.replace("`", "``") + "`"
        for name in names
    )


def text_of(node: FilterNode) -> str:
    """The node as text; parsed again, it gives an equal tree. Equal texts mean equal trees."""
    match node:
        case Literal(value):
            return _literal_text(value)
        case Field(names):
            return name_text(names)
        case Unary(operator, operand):
            return f"{operator}{_inner(operand)}"
        case Binary(operator, left, right):
            return f"{_inner(left)} {operator} {_inner(right)}"
        case FunctionCall(name, arguments):
            return f"{name}({', '.join(map(text_of, arguments))})"
        case ListOf(items):
            return f"[{', '.join(map(text_of, items))}]"
        case ObjectOf(pairs):
            return "{" + ", ".join(f"{encode_body(name)}: {text_of(value)}" for name, value in pairs) + "}"
        case Template(parts):
            return 's"' + "".join(_template_text(part) for part in parts) + '"'


def _literal_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{encode_body(name)}: {_literal_text(one)}" for name, one in value.items()) + "}"
    text = encode_body(value)
    return f"({text})" if text.startswith("-") else text


def _template_text(part: FilterNode) -> str:
    if isinstance(part, Literal):
        return encode_body(part.value)[1:-1].replace("$", "\\u0024")
    return "${" + text_of(part).replace("\\", "\\\\").replace('"', '\\"') + "}"


def _inner(node: FilterNode) -> str:
    text = text_of(node)
    return f"({text})" if isinstance(node, Binary | Unary) else text
