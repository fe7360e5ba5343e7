"""What server and client agree on beneath the bodies: a header, and text as a segment of a path."""

from __future__ import annotations

from urllib.parse import quote

POSITION = "Journal-Position"


def segment(text: str) -> str:
    """Text as one segment of a path.

    >>> segment("a/b c")
    'a%2Fb%20c'
    """
    return quote(text, safe="~:@!$&'()*+,;=-._")
