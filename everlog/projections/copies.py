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
from msgspec.structs import replace

from everlog.core.values import shown
from everlog.errors import InvalidProjection

# A runner that waits says so more often than this, also if its clock is a little late.
WAITING_S = 60.0
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


RequestState = Literal["waiting", "running", "silent", "done", "failed"]


class CopyRequest(msgspec.Struct, frozen=True):
    """Work that needs the handler: a process that runs the projection does it. See copy_requests.py.

    `owner` has it now, and `beat` grows meanwhile, last at `beat_ms` by its clock; `handled` of `total` events, None if
    unknown. It is over with `ended_ms`: then `error` says why it failed, or `differences` what a verification found.
    `silent_s`: for how long the owner has not reported, if that is longer than a lease; found by a reader, not stored.
    """

    asked_ms: int
    owner: str | None = None
    beat: int = 0
    handled: int = 0
    total: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    differences: tuple[Difference, ...] = ()
    beat_ms: int = 0
    silent_s: float | None = None

    @property
    def open(self) -> bool:
        """Whether it still has to be done."""
        return self.ended_ms is None

    @property
    def state(self) -> RequestState:
        if self.open and self.owner is not None:
            return "running" if self.silent_s is None else "silent"
        if self.open:
            return "waiting"
        return "done" if self.error is None else "failed"

    def shown(self) -> dict[str, Any]:
        """What the caller wants to know; the beats are for runners."""
        found = {
            "state": self.state,
            **{name: getattr(self, name) for name in self.__struct_fields__ if not name.startswith("beat")},
        }
        return {**found, "differences": [{**one._asdict(), "equal": one.equal} for one in self.differences]}


class Copies(msgspec.Struct, frozen=True):
    """Numbers of copies; 0 is the view as it was first. `garbage`: what is no longer needed and to be dropped.

    `filled`: the one that is being built has once had all that the current one has. `tables`, `versions`: of each copy;
    a copy's version is recorded before anything is written to it, and stays. `waiting`: versions whose runners wait for
    a copy of their own, and when they last said so, in ms. `rebuild`, `verify`: what runners were asked for last.
    `paused`: keys that a verification paused.
    """

    current: int = 0
    building: int | None = None
    filled: bool = False
    previous: int | None = None
    garbage: tuple[int, ...] = ()
    last: int = 0
    tables: Mapping[int, tuple[str, ...]] = {}
    versions: Mapping[int, str] = {}
    waiting: Mapping[str, int] = {}
    rebuild: CopyRequest | None = None
    verify: CopyRequest | None = None
    paused: tuple[str, ...] = msgspec.field(default=(), name="standing")

    def shown(self) -> dict[str, Any]:
        """What readers of the view want to know; the rest is for runners."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("current", "building", "filled", "previous")}
        found["version"] = self.versions.get(self.current)
        found["waiting"] = dict(self.waiting)
        requests = {"rebuild": self.rebuild, "verify": self.verify}
        return found | {kind: one and one.shown() for kind, one in requests.items()}

    def is_for(self, version: str) -> bool:
        """Whether a runner of this version may write to the current copy: it is its own, or no version's yet."""
        return self.versions.get(self.current, version) == version

    def recorded(self, version: str) -> Copies:
        """With this as the version of the current copy, unless it has one."""
        if self.current in self.versions:
            return self
        return replace(self, versions={**self.versions, self.current: version})

    def waits(self, version: str, now_ms: int | None) -> Copies:
        """With a runner of this version that waits for a copy of its own, or with None with none."""
        others = {one: at for one, at in self.waiting.items() if one != version}
        return replace(self, waiting=others if now_ms is None else {**others, version: now_ms})

    def waiting_versions(self, now_ms: int) -> list[str]:
        """The versions that wait for a copy of their own, as far as their runners said so lately."""
        return sorted(
            one for one, at in self.waiting.items() if now_ms - at <= WAITING_S * 1000 and not self.is_for(one)
        )

    def remedy(self, name: str, now_ms: int) -> str | None:
        """What lets a version go on that waits for a copy of its own; None if none does."""
        versions = self.waiting_versions(now_ms)
        if not versions:
            return None
        filled_by, waiting = (named_version(one) for one in (self.versions[self.current], versions[0]))
        waits = f"the view is filled by {filled_by}, and {waiting} waits"
        built = {self.versions.get(number): number for number in (self.previous, self.building) if number is not None}
        number = built.get(versions[0])
        if number is None:
            return f"{waits}: 'everlog projections rebuild {name}' fills a copy for it, then 'switch' goes there"
        if number == self.previous:
            return f"{waits}: 'everlog projections switch {name} --back' goes to its copy"
        if self.filled:
            return f"{waits}: its copy is filled, 'everlog projections switch {name}' goes there"
        return f"{waits}: its copy is being filled, 'everlog projections copies {name}' says how far it is"

    def names(self, number: int) -> dict[str, str]:
        """The tables of a copy, by the names that statements use; none are renamed for the first one."""
        return tables_of(number, self.tables.get(number, ()))


def encode_copies(copies: Copies) -> str:
    """As a row keeps them. What could not be read again is refused here: it would make the projection unusable."""
    text = msgspec.json.encode(copies).decode()
    try:
        same = decode_copies(text) == copies
    except msgspec.ValidationError:
        same = False
    if not same:
        raise InvalidProjection(f"versions and tables of a view are text: {shown(copies)}")
    return text


def decode_copies(text: str) -> Copies:
    """As they were written."""
    return msgspec.json.decode(text, type=Copies)


def named_version(version: str) -> str:
    """A version as sentences name it.

    >>> named_version("2"), named_version("")
    ("version '2'", 'code without a version')
    """
    return f"version {version!r}" if version else "code without a version"


def copy_name(name: str, number: int) -> str:
    """Under which name a copy's offsets and owners are kept.

    >>> copy_name("owed", 0), copy_name("owed", 2)
    ('owed', 'owed~2')
    """
    return f"{name}~{number}" if number else name


def copy_of(name: str) -> tuple[str, int]:
    """The projection that a name belongs to, and the number of its copy.

    >>> copy_of("owed"), copy_of("owed~2")
    (('owed', 0), ('owed', 2))
    """
    found = _COPY.fullmatch(name)
    return (name, 0) if found is None else (found["name"], int(found["number"]))


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
