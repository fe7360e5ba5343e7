"""Schemas of documents as they are stored, and what became of a check of what was there before."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

MAX_PROBLEMS = 100
"""A check keeps this many of the documents that do not fit."""

CheckState = Literal["running", "done", "failed"]


class SchemaKey(NamedTuple):
    """A definition without its text: the version is new whenever it is put."""

    schema_id: str
    template: str
    version: str


class DocumentSchema(msgspec.Struct, frozen=True):
    """A JSON Schema for all documents that match a template. `text` is the schema as exact JSON."""

    schema_id: str
    template: str
    text: str
    version: str
    modified_ms: int

    @property
    def key(self) -> SchemaKey:
        return SchemaKey(self.schema_id, self.template, self.version)

    @property
    def body(self) -> Any:
        """The schema for Python users."""
        return msgspec.json.decode(self.text)


class SchemaViolation(msgspec.Struct, frozen=True, rename="camel"):
    """One place of a body that does not fit: where in the body, which part of the schema, and why."""

    path: str
    schema_path: str
    message: str


class SchemaProblem(msgspec.Struct, frozen=True):
    """A stored document that does not fit."""

    path: str
    errors: tuple[SchemaViolation, ...] = ()


class SchemaCheck(msgspec.Struct, frozen=True):
    """How far a check of what was there before is. `checked` and `violations` count documents and elements.

    `cursor`: where it goes on, if its server dies. `runs`: how often it was begun or taken over.
    `released`: no process works on it.
    """

    check_id: str
    schema_id: str
    version: str
    state: CheckState = "running"
    checked: int = 0
    violations: int = 0
    problems: tuple[SchemaProblem, ...] = ()
    total: int | None = None
    cursor: tuple[str, ...] = ()
    started_ms: int = 0
    ended_ms: int | None = None
    reason: str | None = None
    runs: int = 0
    released: bool = False

    @property
    def ended(self) -> bool:
        return self.state != "running"


class StoredCheck(NamedTuple):
    """A check with its beat, which grows with every change."""

    check: SchemaCheck
    beat: int

    @classmethod
    def read(cls, beat: int, body: str) -> StoredCheck:
        return cls(_check(body), beat)


_check = msgspec.json.Decoder(SchemaCheck).decode
