"""What a queue is declared to be: its options, and the columns of its keys and data, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.config.queue_options import QueueOptions
from everlog.errors import DeclarationRefused, InvalidDeclaration
from everlog.queues.columns import Column


class ColumnSchema(msgspec.Struct, frozen=True):
    """The columns of one version; those named in `key` make up the key, the others the data."""

    version: int
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(column for name in self.key for column in self.columns if column.name == name)

    @property
    def data_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.name not in self.key)


class Declaration(msgspec.Struct, frozen=True):
    """A queue as the store knows it. Without columns, keys and data are whatever clients send."""

    name: str
    options: QueueOptions = QueueOptions()
    schemas: tuple[ColumnSchema, ...] = ()
    description: str = ""

    @property
    def schema(self) -> ColumnSchema | None:
        """The newest version of the columns."""
        return self.schemas[-1] if self.schemas else None

    @property
    def version(self) -> int:
        return self.schemas[-1].version if self.schemas else 1

    def evolve(self, wanted: Declaration, *, empty: bool) -> Declaration:
        """This queue under a new declaration: a change of columns is a new version, the old ones stay readable.

        What makes two keys equal cannot change under rows that are there.
        """
        mine, theirs = self.schema, wanted.schema
        schemas = self.schemas
        if theirs is not None and (mine is None or (mine.key, mine.columns) != (theirs.key, theirs.columns)):
            if not empty and (mine is None or mine.key_columns != theirs.key_columns):
                raise DeclarationRefused(
                    f"{self.name}: the key columns cannot change while the queue holds jobs: drain it first, or "
                    "declare a queue with another name"
                )
            schemas = (*schemas, msgspec.structs.replace(theirs, version=self.version + 1 if mine else 2))
        return Declaration(self.name, wanted.options, schemas, wanted.description or self.description)


def check_declaration(declaration: Declaration) -> None:
    """What cannot be read again must not be stored: no queue beside it could be read either."""
    try:
        found = decode_declaration(encode_declaration(declaration))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidDeclaration(f"the declaration of {declaration.name} cannot be written: {error}") from error
    if found != declaration:
        raise InvalidDeclaration(f"the declaration of {declaration.name} would be read as another one")


def encode_declaration(declaration: Declaration) -> bytes:
    return msgspec.json.encode(declaration)


def decode_declaration(data: bytes | str) -> Declaration:
    return msgspec.json.decode(data, type=Declaration)


def convert_schemas(found: Sequence[Any]) -> tuple[ColumnSchema, ...]:
    """Versions of columns as they come from outside, checked."""
    try:
        return msgspec.convert(found, tuple[ColumnSchema, ...])
    except msgspec.ValidationError as error:
        raise InvalidDeclaration(f"these are no columns: {error}") from error


def find_data(declaration: Declaration, version: int) -> tuple[Column, ...] | None:
    """The data columns of a version; None if that version had none."""
    for schema in declaration.schemas:
        if schema.version == version:
            return schema.data_columns
    return None


def plain_options(options: QueueOptions) -> dict[str, Any]:
    """The options that differ from the defaults."""
    found: dict[str, Any] = msgspec.to_builtins(options)
    return found
