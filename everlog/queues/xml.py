"""Queues declared in XML: tables of the model `queue`, with their columns and one `<journal>` element of options.

Read with expat, which knows the line of every element, and which is told to take no external entities.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from msgspec.structs import replace

from everlog.config.queue_options import QueueOptions, check_name, make_options
from everlog.errors import InvalidConfig, InvalidDeclaration, InvalidInput
from everlog.queues.columns import COLUMN_NAME, MAX_COLUMNS, PREDEFINED, TYPES, Column, check_value
from everlog.queues.declaration import ColumnSchema, Declaration

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODELS = ("content", "data", "log", "queue", "journal", "session", "sequential", "tree")
_JOURNAL = {
    name.replace("_", "-"): name
    for name in QueueOptions.__struct_fields__
    if name not in ("file", "max_payload_bytes", "clock_tolerance", "max_retry_backoff", "max_buckets")
}
_NUMBERS = (
    "max_timeouts",
    "lifetime_timeouts",
    "slow_threshold",
    "max_in_flight",
    "max_in_flight_per_group",
    "replication",
    "shards",
)
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "context": ("name",),
    "keyspace": ("name",),
    "table": ("name", "model", "row-key", "drop", "temporary", "sparse", "secure"),
    "schema": (),
    "column": ("name", "type", "limited", "encrypt", "required", "blob"),
    "journal": tuple(_JOURNAL),
    "block-size": (),
    "description": (),
    "default": (),
    "min-value": (),
    "max-value": (),
    "min-length": (),
    "max-length": (),
    "validation": (),
}
_CHILDREN: dict[str, tuple[str, ...]] = {
    "context": ("table",),
    "keyspace": ("table",),
    "table": ("block-size", "description", "schema", "journal"),
    "schema": ("column",),
    "column": ("description", "default", "min-value", "max-value", "min-length", "max-length", "validation"),
}
MAX_BYTES = 16 * 1024 * 1024


class Element(NamedTuple):
    """An element of the file, with the line that it begins on."""

    tag: str
    line: int
    attributes: dict[str, str]
    children: list[Element]
    text: list[str]


def read_declarations(path: Path) -> list[Declaration]:
    """The queues that a file declares; an error names the file, the line and the attribute."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidDeclaration(f"cannot be read: {error.strerror}", file=str(path)) from error
    return parse_declarations(data, str(path))


def parse_declarations(data: bytes, file: str) -> list[Declaration]:
    """The same, from the bytes of a file."""
    if len(data) > MAX_BYTES:
        raise InvalidDeclaration(f"a declaration has at most {MAX_BYTES:,} bytes", file=file)
    root = _parse(data, file)
    if root.tag not in ("context", "keyspace"):
        raise InvalidDeclaration(f"<{root.tag}> is not <context>", file=file, line=root.line)
    _check_shape(root, file)
    found: dict[str, Declaration] = {}
    for table in root.children:
        declaration = _Table(table, file).declaration()
        if declaration is not None:
            if declaration.name in found:
                raise _wrong(table, file, "name", f"the table {declaration.name} is declared twice")
            found[declaration.name] = declaration
    return list(found.values())


def _parse(data: bytes, file: str) -> Element:
    parser = expat.ParserCreate()
    stack = [Element("", 0, {}, [], [])]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, parser.CurrentLineNumber, attributes, [], [])
        stack[-1].children.append(element)
        stack.append(element)

    def text(found: str) -> None:
        stack[-1].text.append(found)

    def no_types(*_: object) -> None:
        raise InvalidDeclaration("a DOCTYPE is not allowed here", file=file, line=parser.CurrentLineNumber)

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = no_types
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InvalidDeclaration(
            f"this is not XML: {expat.ErrorString(error.code)}", file=file, line=error.lineno
        ) from error
    return stack[0].children[0]


def _check_shape(element: Element, file: str) -> None:
    """Only known elements, in known places, with known attributes."""
    allowed = _ATTRIBUTES[element.tag]
    for name in element.attributes:
        if name not in allowed:
            raise _wrong(
                element, file, name, f"<{element.tag}> has no attribute {name!r}; it has: {', '.join(allowed)}"
            )
    for child in element.children:
        if child.tag not in _CHILDREN.get(element.tag, ()):
            raise InvalidDeclaration(f"<{child.tag}> does not belong in <{element.tag}>", file=file, line=child.line)
        _check_shape(child, file)


def _wrong(element: Element, file: str, attribute: str | None, message: str) -> InvalidDeclaration:
    return InvalidDeclaration(message, file=file, line=element.line, attribute=attribute)


class _Table:
    """One `<table>`."""

    def __init__(self, element: Element, file: str) -> None:
        self._element = element
        self._file = file

    def declaration(self) -> Declaration | None:
        """The queue; None for a table of another model."""
        name = self._required("name")
        if _TABLE_NAME.fullmatch(name) is None:
            raise self._wrong("name", f"{name!r} is no name: letters, digits and '_', not beginning with a digit")
        model = self._element.attributes.get("model", "content")
        if model not in _MODELS:
            raise self._wrong("model", f"{model!r} is no model: {', '.join(_MODELS)}")
        if model not in ("queue", "journal"):
            return None
        try:
            check_name(name)
        except InvalidInput as error:
            raise self._wrong("name", str(error)) from error
        schema = self._schema()
        return Declaration(name, self._options(), (schema,), self._text(self._element, "description") or "")

    def _required(self, attribute: str) -> str:
        found = self._element.attributes.get(attribute)
        if not found:
            raise self._wrong(attribute, f"<{self._element.tag}> needs the attribute {attribute!r}")
        return found

    def _wrong(self, attribute: str, message: str) -> InvalidDeclaration:
        return _wrong(self._element, self._file, attribute, message)

    def _only(self, tag: str) -> Element | None:
        found = [child for child in self._element.children if child.tag == tag]
        if len(found) > 1:
            raise _wrong(found[1], self._file, None, f"<{tag}> stands once in a table")
        return found[0] if found else None

    def _schema(self) -> ColumnSchema:
        element = self._only("schema")
        columns: dict[str, Column] = {}
        for child in [] if element is None else element.children:
            column = self._column(child)
            if column.name in columns:
                raise _wrong(child, self._file, "name", f"the column {column.name} is declared twice")
            columns[column.name] = column
        if len(columns) > MAX_COLUMNS:
            raise self._wrong("name", f"a table has at most {MAX_COLUMNS:,} columns")
        key = tuple(name.strip() for name in self._required("row-key").split(","))
        for name in key:
            if name not in columns:
                raise self._wrong("row-key", f"row-key names {name!r}, which is no column of this table")
            if columns[name].type.startswith("float"):
                raise self._wrong("row-key", f"the column {name!r} is a {columns[name].type}: it cannot be a key")
        if len(set(key)) < len(key):
            raise self._wrong("row-key", "row-key names a column twice")
        return ColumnSchema(1, key, tuple(columns.values()))

    def _column(self, element: Element) -> Column:
        name = element.attributes.get("name", "")
        if COLUMN_NAME.fullmatch(name) is None:
            raise _wrong(element, self._file, "name", f"{name!r} is no name of a column")
        if name.lower().replace("-", "_") in PREDEFINED:
            raise _wrong(element, self._file, "name", f"{name!r} is a column that every queue has: do not declare it")
        kind = element.attributes.get("type", "")
        if kind not in TYPES:
            raise _wrong(element, self._file, "type", f"{kind!r} is no type of a column")
        required = self._flag(element, "required")
        default = self._text(element, "default")
        if required and default is not None:
            raise _wrong(element, self._file, "required", f"the column {name} has a default, so it cannot be required")
        column = Column(
            name,
            kind,
            required,
            None,
            self._number(element, "min-value"),
            self._number(element, "max-value"),
            self._whole(element, "min-length"),
            self._whole(element, "max-length"),
            self._text(element, "validation"),
            self._text(element, "description") or "",
        )
        return self._with_default(element, column, default)

    def _with_default(self, element: Element, column: Column, text: str | None) -> Column:
        if text is None:
            return column
        try:
            value: Any = text
            if column.width is not None:
                value = int(text)
            elif column.type.startswith("float"):
                value = float(text)
            elif column.type == "binary":
                value = text.encode()
            check_value(column, value)
        except (InvalidInput, ValueError) as error:
            raise _wrong(element, self._file, "default", f"the default of {column.name}: {error}") from error
        return replace(column, default=value)

    def _text(self, element: Element, tag: str) -> str | None:
        for child in element.children:
            if child.tag == tag:
                return "".join(child.text).strip()
        return None

    def _number(self, element: Element, tag: str) -> int | float | None:
        text = self._text(element, tag)
        if text is None:
            return None
        try:
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        except ValueError as error:
            raise _wrong(element, self._file, tag, f"{text!r} is no number") from error

    def _whole(self, element: Element, tag: str) -> int | None:
        found = self._number(element, tag)
        if isinstance(found, float):
            raise _wrong(element, self._file, tag, f"{found} is no whole number")
        return found

    def _flag(self, element: Element, attribute: str) -> bool:
        text = element.attributes.get(attribute, "false").lower()
        if text not in ("true", "false", "on", "off", "yes", "no"):
            raise _wrong(element, self._file, attribute, f"{attribute} is true or false, not {text!r}")
        return text in ("true", "on", "yes")

    def _options(self) -> QueueOptions:
        """Each attribute is checked alone first, so that the error can name it."""
        element = self._only("journal")
        options: dict[str, Any] = {}
        if element is not None:
            for attribute, text in element.attributes.items():
                options[_JOURNAL[attribute]] = self._option(element, attribute, text)
        if self._flag(self._element, "secure"):
            options.setdefault("secure", True)
        try:
            return make_options(**options)
        except InvalidConfig as error:
            raise _wrong(element or self._element, self._file, None, str(error)) from error

    def _option(self, element: Element, attribute: str, text: str) -> Any:
        name = _JOURNAL[attribute]
        value: Any = text
        try:
            if name in ("merge", "secure"):
                value = self._flag(element, attribute)
            elif name in _NUMBERS:
                value = int(text)
            related = {"max_processing_timeout": "3650d"} if name == "processing_timeout" else {}
            if name == "max_processing_timeout":
                related = {"processing_timeout": "1ms"}
            make_options(**{name: value, **related})
        except (InvalidConfig, ValueError) as error:
            raise _wrong(element, self._file, attribute, f"{attribute}={text!r}: {error}") from error
        return value
