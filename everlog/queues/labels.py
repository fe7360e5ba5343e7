"""What a job may be labelled with: its kind, which says the function, and its group, which shares out the work."""

from __future__ import annotations

from everlog.config.queue_options import NAME
from everlog.errors import InvalidInput

MAX_GROUP = 200


def check_kind(kind: object) -> str:
    """The kind of a job; "" for none.

    >>> check_kind(None), check_kind("welcome")
    ('', 'welcome')
    """
    if kind is None or kind == "":
        return ""
    if not isinstance(kind, str) or NAME.fullmatch(kind) is None:
        raise InvalidInput(
            f"a kind is at most 100 letters, digits, '_', '-', '.', the first a letter or '_': not {kind!r:.200}"
        )
    return kind


def check_group(group: object) -> str:
    """The group of a job; "" for none."""
    if group is None or group == "":
        return ""
    if not isinstance(group, str) or len(group) > MAX_GROUP or not group.isprintable():
        raise InvalidInput(f"a group is 1 to {MAX_GROUP} characters of printable text, not {group!r:.250}")
    return group
