"""Actions, and the header `journal.action` that carries them: one JSON object with one name in it.

Everlog's own additions are optional fields: `expected`, `id`, `timestamp`, `life` (append), `ifExists`, `copied`,
`life`, `onlyLife` (delete), `expireOn`, `expireAt` (purge), and the action `resume`.
"""

from __future__ import annotations

import uuid
from datetime import date
from typing import Literal

import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.json_text import CutJson, members_of
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import MalformedRecord

ACTION_HEADER = "journal.action"
_ABSENT = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")
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
    not take it for one. `life`: a fresh UUID, the `record_id` of the life that this append begins, if it begins one. So
    a life keeps its name in a copy of the log that has other offsets or another topic.
    """

    range: ActionRange
    origin: str | None = None
    version: str | None = None
    payload_type: Literal["json", "binary"]
    metadata: msgspec.Raw = _ABSENT
    expected: Expected | None = None
    id: str | None = None
    timestamp: int | None = None
    life: str | None = None

    @property
    def header_data(self) -> str | None:
        """The user's header metadata, as JSON text; what is not an object counts as none, as older writers send it."""
        raw = bytes(self.metadata)
        data = b"null" if raw == b"{}" or not raw.startswith(b"{") else members_of(raw).get("data", b"null")
        return None if data == b"null" else data.decode()


class Copied(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What a copy knows of a journal besides its events: when it began and when it ends."""

    created: int | None = None
    updated: int | None = None
    expire_after: str | None = None
    expire_on: date | None = None
    expire_at: int | None = None


class Delete(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Events up to `to` are gone. With `copied` it only begins a journal whose first events are gone, as `life`.

    With `only_life` it counts in that life alone, so that it cannot hit one that has begun since.
    """

    to: int
    origin: str | None = None
    version: str | None = None
    if_exists: bool = False
    copied: Copied | None = None
    life: str | None = None
    only_life: str | None = None


class Purge(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The journal is gone; with `expire_on` and `expire_at`, only if it has expired by then.

    The time decides, in milliseconds; the day does for a journal, or in a purge, that knows no more than that.
    """

    origin: str | None = None
    version: str | None = None
    expire_on: date | None = None
    expire_at: int | None = None

    @property
    def only_expired(self) -> bool:
        """Whether it leaves a journal alone that has not expired."""
        return self.expire_on is not None or self.expire_at is not None


class Mark(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Changes nothing; its writer watches the log for it."""

    id: str
    origin: str | None = None
    version: str | None = None


class Resume(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Take the journal's quarantined records again, without those whose digests are in `skip`."""

    skip: tuple[str, ...] = ()
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
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def encode_action(action: Action) -> bytes:
    """The header's bytes.

    >>> encode_action(Delete(to=3))
    b'{"delete":{"to":3}}'
    """
    return _encode({_NAMES[type(action)]: action})


def decode_action(header: bytes) -> Action | None:
    """The action, None if the header holds none that we know, or MalformedRecord."""
    try:
        try:
            action = _decode_shallow(header)
        except RecursionError:
            action = _decode_deep(header)
        if isinstance(action, Append):
            bytes(action.metadata).decode()  # the rest of the header was read
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"the header {ACTION_HEADER} is not an action: {error}") from error
    if action is not None:
        _check(action)
    return action


def _decode_shallow(header: bytes) -> Action | None:
    try:
        found = _decode(header)
        return found.append or found.mark or found.delete or found.purge or found.resume
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_by_name(header)


def _decode_deep(header: bytes) -> Action | None:
    """For metadata that is nested more deeply than the stack has room for: it is carried, and not looked at."""
    cut = CutJson(header)
    action = _decode_shallow(cut.shell)
    if isinstance(action, Append):
        whole = msgspec.Raw(cut.restore(bytes(action.metadata)))
        return msgspec.structs.replace(action, metadata=whole)
    return action


def _decode_by_name(header: bytes) -> Action | None:
    """The slow way, for headers that do not fit at first sight: only the first known name counts."""
    names = _decode_names(header)
    for name, kind in _KINDS.items():
        if bytes(names.get(name, _ABSENT)) != b"null":
            return msgspec.json.decode(names[name], type=kind)
    return None


def wrap_header_data(text: str | None) -> msgspec.Raw:
    """The metadata of an append whose user gave this JSON, or none."""
    return _EMPTY if text is None else msgspec.Raw(b'{"data":%b}' % text.encode())


def _check(action: Action) -> None:
    """Numbers within their bounds; plain comparisons, because this runs for every record of the log."""
    if isinstance(action, Append):
        first, last, expected = action.range.first, action.range.last, action.expected
        if not 1 <= first <= last <= MAX_SEQ_NR or (expected and not 0 <= expected.seq_nr <= MAX_SEQ_NR):
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: {first}..{last}, {expected}")
        if action.timestamp is not None and not MIN_TIMESTAMP <= action.timestamp <= MAX_SEQ_NR:
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: timestamp {action.timestamp}")
        if action.life is not None:
            _check_life(action.life)
    elif isinstance(action, Delete):
        if not 1 <= action.to <= MAX_SEQ_NR:
            raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: {action.to}")
        if action.copied is not None:
            _check_copied(action.copied)
        for life in (action.life, action.only_life):
            if life is not None:
                _check_life(life)
    elif isinstance(action, Purge) and action.expire_at is not None:
        _check_time(action.expire_at)


def _check_life(life: str) -> None:
    """A UUID in its one usual spelling: what is compared as text here is a UUID in Cassandra."""
    try:
        usual = str(uuid.UUID(life)) == life
    except ValueError:
        usual = False
    if not usual:
        raise MalformedRecord(f"the header {ACTION_HEADER} has no UUID as life: {life!r}")


def _check_copied(copied: Copied) -> None:
    for time in (copied.created, copied.updated, copied.expire_at):
        if time is not None:
            _check_time(time)
    if copied.expire_after is not None:
        ExpireAfter.parse(copied.expire_after)


def _check_time(time: int) -> None:
    if not MIN_TIMESTAMP <= time <= MAX_SEQ_NR:
        raise MalformedRecord(f"the header {ACTION_HEADER} is out of range: {time}")
