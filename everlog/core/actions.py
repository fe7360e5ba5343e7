"""Actions, and the header `journal.action` that carries them: one JSON object with one name in it.

Everlog's own additions are optional fields: `expected`, `id`, `timestamp` (append), `ifExists`, `copied` (delete),
`expireOn` (purge), and the action `resume`.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import MalformedRecord

ACTION_HEADER = "journal.action"
MIN_TIMESTAMP = -(2**63)


class ActionRange(msgspec.Struct, frozen=True, gc=False, rename={"first": "from", "last": "to"}):
    """First and last seqNr of an append, as the header says them."""

    first: int
    last: int


class Expected(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Where the writer saw the journal: its seqNr (0: absent) and which life it was."""

    seq_nr: int
    record_id: str | None = None


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel", omit_defaults=True):
    """Add the events of this record. Writers always give `metadata`, `{}` when they have none.

    `timestamp`: the events are a copy, and of this time. The record itself is new: a log that removes old records must
    not take it for one.
    """

    range: ActionRange
    origin: str | None = None
    version: str | None = None
    payload_type: Literal["json", "binary"]
    metadata: Any = None
    expected: Expected | None = None
    id: str | None = None
    timestamp: int | None = None

    @property
    def header_data(self) -> Any:
        """The user's header metadata; what is not an object counts as none, as older writers send it."""
        return self.metadata.get("data") if isinstance(self.metadata, dict) else None


class Copied(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What a copy knows of a journal besides its events: when it began and when it ends."""

    created: int | None = None
    updated: int | None = None
    expire_after: str | None = None
    expire_on: date | None = None


class Delete(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Events up to `to` are gone. With `copied` it only begins a journal: a copy whose first events are gone."""

    to: int
    origin: str | None = None
    version: str | None = None
    if_exists: bool = False
    copied: Copied | None = None


class Purge(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The journal is gone; with `expire_on`, only if it has expired by that day."""

    origin: str | None = None
    version: str | None = None
    expire_on: date | None = None


class Mark(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Changes nothing; its writer watches the log for it."""

    id: str
    origin: str | None = None
    version: str | None = None


class Resume(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Take the journal's quarantined records again, without those at the offsets `skip`."""

    skip: tuple[int, ...] = ()
    origin: str | None = None
    version: str | None = None


Action = Append | Delete | Purge | Mark | Resume


class _Header(msgspec.Struct, gc=False, omit_defaults=True):
    append: Append | None = None
    mark: Mark | None = None
    delete: Delete | None = None
    purge: Purge | None = None
    resume: Resume | None = None


# In the order in which the names are tried.
_KINDS: dict[str, type[Action]] = {
    "append": Append,
    "mark": Mark,
    "delete": Delete,
    "purge": Purge,
    "resume": Resume,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Header).decode


def encode_action(action: Action) -> bytes:
    """The header's bytes.

    >>> encode_action(Delete(to=3))
    b'{"delete":{"to":3}}'
    """
    return _encode({_NAMES[type(action)]: action})


def decode_action(header: bytes) -> Action | None:
    """The action, None if the header holds none that we know, or MalformedRecord."""
    try:
        found = _decode(header)
        action = found.append or found.mark or found.delete or found.purge or found.resume
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        action = _decode_by_name(header)
    if action is not None:
        _check(action)
    return action


def _decode_by_name(header: bytes) -> Action | None:
    """The slow way, for headers that do not fit at first sight: only the first known name counts."""
    try:
        names = msgspec.json.decode(header, type=dict[str, Any])
        for name, kind in _KINDS.items():
            if names.get(name) is not None:
                return msgspec.convert(names[name], kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecord(f"the header {ACTION_HEADER} is not an action: {error}") from error
    return None


def _check(action: Action) -> None:
    """Numbers within their bounds; plain comparisons, because this runs for every record of the log."""
    if isinstance(action, Append):
        first, last, expected = action.range.first, action.range.last, action.expected
        if not 1 <= first <= last <= MAX_SEQ_NR or (expected and not 0 <= expected.seq_nr <= MAX_SEQ_NR):
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: {first}..{last}, {expected}")
        if action.timestamp is not None and not MIN_TIMESTAMP <= action.timestamp <= MAX_SEQ_NR:
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: timestamp {action.timestamp}")
    elif isinstance(action, Delete):
        if not 1 <= action.to <= MAX_SEQ_NR:
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: {action.to}")
        if action.copied is not None:
            _check_copied(action.copied)


def _check_copied(copied: Copied) -> None:
    for time in (copied.created, copied.updated):
        if time is not None and not MIN_TIMESTAMP <= time <= MAX_SEQ_NR:
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: {time}")
    if copied.expire_after is not None:
        ExpireAfter.parse(copied.expire_after)
