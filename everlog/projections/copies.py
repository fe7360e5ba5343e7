"""Copies of a view: the one that is read, one that is being filled beside it, and the one before.

The projection of copy 2 of `owed` has the name `owed~2`, with offsets, owners and dead letters of its own; its tables
stand beside the first ones, as `total__2`. Which copy is read is one row, changed by one conditional write. So a reader
sees one copy or another, never something in between, whatever dies when.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

_COPY = re.compile(r"(?P<name>.*)~(?P<number>[1-9][0-9]*)", re.DOTALL)
# Text and remarks stay as they are; names, quoted or not, may be those of tables.
_TOKENS = re.compile(
    r"(?P<hidden>'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/)"
    r'|(?P<name>"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|[^\W\d][\w$]*)',
    re.DOTALL,
)


class Difference(NamedTuple):
    """How a table differs: rows that the recount has and the view lacks, and the other way round."""

    table: str
    rows: int
    missing: int
    surplus: int

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus


class CopyRequest(msgspec.Struct, frozen=True):
    """Work that needs the handler: a process that runs the projection does it. See copy_requests.py.

    `owner` has it now, and `beat` grows meanwhile; `handled` of `total` events, None if unknown. It is over
    with `ended_ms`: then `error` says why it failed, or `differences` what a verification found.
    """

    asked_ms: int
    owner: str | None = None
    beat: int = 0
    handled: int = 0
    total: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def open(self) -> bool:
        """Whether it still has to be done."""
        return self.ended_ms is None

    @property
    def state(self) -> Literal["waiting", "running", "done", "failed"]:
        if self.open:
            return "waiting" if self.owner is None else "running"
        return "done" if self.error is None else "failed"

    def shown(self) -> dict[str, Any]:
        """What the caller wants to know; the beat is for runners."""
        found = {
            "state": self.state,
            **{name: getattr(self, name) for name in self.__struct_fields__ if name != "beat"},
        }
        return {**found, "differences": [{**one._asdict(), "equal": one.equal} for one in self.differences]}


class Copies(msgspec.Struct, frozen=True):
    """Numbers of copies; 0 is the view as it was first. `garbage`: what is no longer needed and to be dropped.

    `filled`: the one that is being built has once had all that the current one has. `tables`, `versions`: of each copy.
    `rebuild`, `verify`: what runners were asked for last. `paused`: keys that a verification paused.
    """

    current: int = 0
    building: int | None = None
    filled: bool = False
    previous: int | None = None
    garbage: tuple[int, ...] = ()
    last: int = 0
    tables: Mapping[int, tuple[str, ...]] = {}
    versions: Mapping[int, str] = {}
    rebuild: CopyRequest | None = None
    verify: CopyRequest | None = None
    paused: tuple[str, ...] = msgspec.field(default=(), name="standing")

    def shown(self) -> dict[str, Any]:
        """What readers of the view want to know; the rest is for runners."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("current", "building", "filled", "previous")}
        requests = {"rebuild": self.rebuild, "verify": self.verify}
        return found | {kind: one and one.shown() for kind, one in requests.items()}

    def is_for(self, version: str) -> bool:
        """Whether a runner of this version may write to the current copy: it is its own, or no version's."""
        built_by = self.versions.get(self.current)
        return version not in self.versions.values() if built_by is None else version == built_by

    def names(self, number: int) -> dict[str, str]:
        """The tables of a copy, by the names that statements use; none are renamed for the first one."""
        return tables_of(number, self.tables.get(number, ()))


def copy_name(name: str, number: int) -> str:
    """Under which name a copy's offsets and owners are kept.

    >>> copy_name("owed", 0), copy_name("owed", 2)
    ('owed', 'owed~2')
    """
    return f"{name}~{number}" if number else name


def is_copy(name: str) -> bool:
    """Whether this is the name of a copy."""
    return _COPY.fullmatch(name) is not None


def tables_of(number: int, tables: Sequence[str]) -> dict[str, str]:
    """The tables of a copy, by the names that statements use."""
    return {table.lower(): f"{table}__{number}" for table in tables} if number else {}


def rename(statement: str, copies: Mapping[str, str] | None) -> str:
    """A statement with the names of a copy's tables.

    >>> rename("SELECT 'owed', owed.cents FROM owed", {"owed": "owed__2"})
    "SELECT 'owed', owed__2.cents FROM owed__2"
    """
    return _rename(statement, tuple(copies.items())) if copies else statement


@lru_cache(1000)
def _rename(statement: str, copies: tuple[tuple[str, str], ...]) -> str:
    names = dict(copies)

    def replace(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0]
        plain = name[1:-1] if name[0] in '"`[' else name
        new = names.get(plain.lower())
        if new is None:
            return name
        return new if new.isidentifier() and new.isascii() else f"[{new}]"

    return _TOKENS.sub(replace, statement)
