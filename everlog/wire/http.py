"""What server and client agree on beneath the bodies: headers, and text as a segment of a path."""

from __future__ import annotations

from urllib.parse import quote

from everlog.core.values import Version, check_unicode, shown
from everlog.errors import InvalidInput

POSITION = "Journal-Position"
TTL = "Hyper-Storage-TTL"
EXPIRES = "Hyper-Storage-Expires"


def etag(version: int) -> str:
    """Where a journal is, as an entity tag: its seqNr, and its life if that is known.

    >>> etag(3)
    '"3"'
    """
    return f'"{version.text if isinstance(version, Version) else version}"'


def segment(text: str) -> str:
    """Text as one segment of a path.

    >>> segment("a/b c")
    'a%2Fb%20c'
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a name is text, not {shown(text)}")
    return quote(check_unicode("name", text), safe="~:@!$&'()*+,;=-._")
