"""What goes into the fold: records of the log, with what they say."""

from __future__ import annotations

import msgspec

from everlog.core.actions import Action, Append, decode_action
from everlog.core.codec import AppendValue, decode_value
from everlog.core.record import Record
from everlog.errors import MalformedRecord


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record with what it says: an action, or why it cannot be understood."""

    record: Record
    action: Action | None = None
    value: AppendValue | None = None
    error: str | None = None


def decode(record: Record) -> Entry:
    """A record's meaning. An entry without action and error is not for us: foreign, or without key or value."""
    if record.action is None or record.key is None:
        return Entry(record)
    try:
        action = decode_action(record.action)
        if not isinstance(action, Append):
            return Entry(record, action)
        if record.value is None:
            return Entry(record)
        value = decode_value(action.payload_type, record.value)
        if action.timestamp is not None:
            record = msgspec.structs.replace(record, timestamp=action.timestamp)
        return Entry(record, action, value)
    except MalformedRecord as error:
        return Entry(record, error=str(error))
