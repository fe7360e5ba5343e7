"""From text to a tree: the Lark grammar, its limits, and errors that name the place."""

from __future__ import annotations

import functools
from decimal import Decimal
from importlib import resources
from typing import Any

from everlog.core.bounded_map import BoundedMap
from everlog.documents.bodies import MAX_DIGITS, decode_body
from everlog.documents.filters.functions import FUNCTIONS, SPELLINGS
from everlog.documents.filters.patterns import check_pattern
from everlog.documents.filters.tree import (
    Binary,
    Field,
    FilterNode,
    FunctionCall,
    ListOf,
    Literal,
    ObjectOf,
    Template,
    Unary,
)
from everlog.errors import InvalidDocument, MissingExtra

try:
    from lark import Lark, Transformer, UnexpectedInput, UnexpectedToken, v_args
except ImportError as error:
    raise MissingExtra("server") from error

MAX_LENGTH = 8192
MAX_DEPTH = 100
_known: BoundedMap[str, FilterNode] = BoundedMap(1000)


def parse_filter(text: str) -> FilterNode | None:
    """The tree of a filter; None if it is empty. InvalidDocument says what is wrong, and where.

    >>> parse_filter("b > 10")
    Binary(operator='>', left=Field(names=('b',)), right=Literal(value=10))
    """
    if not text.strip():
        return None
    if len(text) > MAX_LENGTH:
        raise InvalidDocument("invalid-filter", f"a filter has at most {MAX_LENGTH:,} characters")
    known = _known.get(text)
    return _known.put(text, _parse(text)) if known is None else known


def is_parsed(text: str) -> bool:
    """Whether a filter is known: then it is not parsed again."""
    return text in _known


def _parse(text: str) -> FilterNode:
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        at = _place(error, len(text))
        place = "at its end" if at >= len(text) else f"at character {at + 1}: {text[at : at + 20]!r}"
        raise InvalidDocument("invalid-filter", f"this filter cannot be read {place}", position=at + 1) from error
    except InvalidDocument as error:
        raise InvalidDocument("invalid-filter", str(error)) from None
    except RecursionError as error:
        raise InvalidDocument("invalid-filter", "this filter is nested too deeply") from error
    node: FilterNode = tree  # type: ignore[assignment]  # the parser applies the transformer
    if depth_of(node) > MAX_DEPTH:
        raise InvalidDocument("invalid-filter", f"a filter has at most {MAX_DEPTH} levels")
    return node


def _place(error: UnexpectedInput, end: int) -> int:
    """Where the text stops making sense."""
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return end
    return end if error.pos_in_stream is None else error.pos_in_stream


@functools.cache
def _parser() -> Lark:
    grammar = resources.files("everlog.documents.filters").joinpath("grammar.lark").read_text()
    return Lark(grammar, parser="lalr", transformer=_Builder(), maybe_placeholders=False)


def depth_of(node: FilterNode) -> int:
    """How deep a tree is, without recursion."""
    deepest, waiting = 0, [(node, 1)]
    while waiting:
        one, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(child, depth + 1) for child in children(one)]
    return deepest


def children(node: FilterNode) -> tuple[FilterNode, ...]:
    """The nodes right below one."""
    match node:
        case Unary(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case FunctionCall(_, arguments):
            return arguments
        case ListOf(items):
            return items
        case ObjectOf(pairs):
            return tuple(value for _, value in pairs)
        case Template(parts):
            return parts
    return ()


def _string(text: str) -> str:
    value: str = decode_body(text)
    return value


def _binary(operator: str) -> Any:
    return v_args(inline=True)(lambda _, left, right: Binary(operator, left, right))


@v_args(inline=True)
class _Builder(Transformer[Any, FilterNode]):
    """Makes nodes while the text is parsed."""

    binary_or = _binary("or")
    binary_xor = _binary("xor")
    binary_and = _binary("and")
    has = _binary("has")
    has_not = _binary("has not")

    def start(self, node: FilterNode) -> FilterNode:
        return node

    def binary(self, left: FilterNode, operator: Any, right: FilterNode) -> FilterNode:
        return Binary(str(operator), left, right)

    def like(self, left: FilterNode, right: FilterNode) -> FilterNode:
        return self._like("like", left, right)

    def not_like(self, left: FilterNode, right: FilterNode) -> FilterNode:
        return self._like("not like", left, right)

    def _like(self, operator: str, left: FilterNode, right: FilterNode) -> FilterNode:
        if isinstance(right, Literal) and isinstance(right.value, str):
            check_pattern(right.value)
        return Binary(operator, left, right)

    def not_(self, operand: FilterNode) -> FilterNode:
        return Unary("!", operand)

    def negative(self, operand: FilterNode) -> FilterNode:
        value = operand.value if isinstance(operand, Literal) else None
        if isinstance(value, Decimal):
            return Literal(value.copy_negate())  # a plain minus would round
        if isinstance(value, int) and not isinstance(value, bool):
            return Literal(-value)
        return Unary("-", operand)

    def number(self, token: Any) -> FilterNode:
        return Literal(decode_body(str(token)))

    def hexadecimal(self, token: Any) -> FilterNode:
        if len(token) > MAX_DIGITS:
            raise InvalidDocument("invalid-filter", f"a number has at most {MAX_DIGITS} digits")
        return Literal(int(str(token), 16))

    def string(self, token: Any) -> FilterNode:
        return Literal(_string(str(token)))

    def raw_string(self, token: Any) -> FilterNode:
        return Literal(str(token)[1:-1])

    def true(self) -> FilterNode:
        return Literal(True)

    def false(self) -> FilterNode:
        return Literal(False)

    def null(self) -> FilterNode:
        return Literal(None)

    def list(self, *items: FilterNode) -> FilterNode:
        if all(isinstance(item, Literal) for item in items):
            return Literal([item.value for item in items if isinstance(item, Literal)])
        return ListOf(items)

    def pair(self, name: Any, value: FilterNode) -> tuple[str, FilterNode]:
        return _string(str(name)), value

    def object(self, *pairs: tuple[str, FilterNode]) -> FilterNode:
        if all(isinstance(value, Literal) for _, value in pairs):
            return Literal({name: value.value for name, value in pairs if isinstance(value, Literal)})
        return ObjectOf(pairs)

    def call(self, name: Any, *arguments: FilterNode) -> FilterNode:
        known = SPELLINGS.get(str(name))
        if known is None:
            names = ", ".join(sorted(SPELLINGS))
            raise InvalidDocument("invalid-filter", f"there is no function {name!s}; there are: {names}")
        minimum, maximum = FUNCTIONS[known].arity
        if not minimum <= len(arguments) <= maximum:
            raise InvalidDocument("invalid-filter", f"{name!s} does not take {len(arguments)} arguments")
        if known == "split" and isinstance(arguments[1], Literal) and isinstance(arguments[1].value, str):
            check_pattern(arguments[1].value)
        return FunctionCall(known, arguments)

    def path(self, *names: str) -> tuple[str, ...]:
        return names

    def plain_name(self, token: Any) -> str:
        return str(token)

    def quoted_name(self, token: Any) -> str:
        return str(token)[1:-1].replace("``", "`")

    def field(self, names: tuple[str, ...]) -> FilterNode:
        return Field(names)

    def template(self, token: Any) -> FilterNode:
        return _template(_string(str(token)[1:]))


def _template(text: str) -> FilterNode:
    """Texts and `${…}`; an expression ends at the brace that closes it."""
    parts: list[FilterNode] = []
    while text:
        before, mark, rest = text.partition("${")
        if before:
            parts.append(Literal(before))
        if not mark:
            break
        expression, text = _until_brace(rest)
        inner = parse_filter(expression)
        if inner is None:
            raise InvalidDocument("invalid-filter", "there is no expression between '${' and '}'")
        parts.append(inner)
    return Template(tuple(parts))


def _until_brace(text: str) -> tuple[str, str]:
    depth = 0
    for at, character in enumerate(text):
        if character == "}" and depth == 0:
            return text[:at], text[at + 1 :]
        depth += (character == "{") - (character == "}")
    raise InvalidDocument("invalid-filter", "a '${' is not closed")
