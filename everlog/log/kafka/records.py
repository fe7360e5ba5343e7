"""Between the library's messages and our records."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from everlog.core.actions import ACTION_HEADER
from everlog.core.record import Headers, Record


def headers_of(action: bytes | None, headers: Headers) -> list[tuple[str, str | bytes | None]] | None:
    """The headers of a message: the action first.

    The library takes names as text that ends at a zero character, and crashes on half a character: both are refused
    here, with a ValueError.
    """
    for name, _ in headers:
        if b"\0" in name.encode():
            raise ValueError(f"the name of a header has a zero character: {name!r}")
    if action is None:
        return list(headers) if headers else None
    return [(ACTION_HEADER, action), *headers] if headers else [(ACTION_HEADER, action)]


def record_of(message: Message) -> Record:
    """The record that a message holds."""
    found: Any = message.headers()
    action, headers = split_headers(found) if found else (None, ())
    return Record(
        message.partition(),  # type: ignore[arg-type]
        message.offset(),  # type: ignore[arg-type]
        message.timestamp()[1],
        message.key(),
        action,
        message.value(),
        headers,
    )


def split_headers(found: list[tuple[str, bytes | None]]) -> tuple[bytes | None, Headers]:
    """The first action, and the other headers; a header without a value counts as empty.

    >>> split_headers([("journal.action", b"{}"), ("a", None), ("journal.action", b"x")])
    (b'{}', (('a', b''),))
    """
    action: bytes | None = None
    headers: list[tuple[str, bytes]] = []
    for name, value in found:
        if name != ACTION_HEADER:
            headers.append((name, value or b""))
        elif action is None:
            action = value or b""
    return action, tuple(headers)
