"""Scopes of tokens: `read`, `write`, `admin`; and `read:/shop/**`, `write:/shop/**` for documents at these paths alone.

The invariant: a scope that cannot be read as one of these is an error where it is written, never one that allows less
or more than it seems to.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from everlog.core.path_pattern import PathPattern

SCOPES = ("read", "write", "admin")
ALL = frozenset(SCOPES)
MAX_SCOPES = 100


class GrantedScopes(NamedTuple):
    """What scopes allow together: whole ones, and document paths to read and to write.

    >>> scopes_of(("write:/shop/**",)).writes[0].matches("shop/a")
    True
    """

    whole: frozenset[str] = frozenset()
    reads: tuple[PathPattern, ...] = ()
    writes: tuple[PathPattern, ...] = ()


@functools.lru_cache(maxsize=1000)
def scopes_of(scopes: tuple[str, ...]) -> GrantedScopes:
    """What these scopes allow; ValueError names the one that is none."""
    if len(scopes) > MAX_SCOPES:
        raise ValueError(f"a token has at most {MAX_SCOPES} scopes")
    whole: set[str] = set()
    paths: dict[str, list[PathPattern]] = {"read": [], "write": []}
    for scope in scopes:
        name, colon, pattern = scope.partition(":")
        if not colon and name in SCOPES:
            whole.add(name)
        elif colon and name in paths:
            paths[name].append(PathPattern.parse(pattern))
        else:
            raise ValueError(
                f"{scope!r} is no scope: it is read, write or admin, or read:/path or write:/path for documents"
            )
    # Admin is all of it; read and write are apart.
    granted = ALL if "admin" in whole else frozenset(whole)
    return GrantedScopes(granted, tuple(paths["read"]), tuple(paths["write"]))


def checked_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order given; ValueError for one that is none."""
    found = tuple(dict.fromkeys(scopes))
    scopes_of(found)
    return found
