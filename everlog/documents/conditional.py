"""Conditional requests (RFC 9110, section 13): entity tags, If-Match, If-None-Match."""

from __future__ import annotations

import re

import msgspec

from everlog.errors import InvalidDocument

_TAG = re.compile(r'\s*(W/)?("[\x21\x23-\x7e\x80-\xff]*")\s*(?:,|$)')


class EntityTags(msgspec.Struct, frozen=True):
    """A list of entity tags, or `*`."""

    any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, header: str, text: str) -> EntityTags:
        """What a header says; InvalidDocument if it is no list of tags."""
        if text.strip() == "*":
            return cls(any=True)
        at = 0
        strong: set[str] = set()
        weak: set[str] = set()
        while at < len(text):
            found = _TAG.match(text, at)
            if found is None:
                raise InvalidDocument("invalid-header", f'{header} is a list of entity tags such as "1f", or *')
            (weak if found[1] else strong).add(found[2])
            at = found.end()
        if not strong and not weak:
            raise InvalidDocument("invalid-header", f"{header} is empty")
        return cls(strong=frozenset(strong), weak=frozenset(weak))

    def match(self, tag: str | None, *, weakly: bool) -> bool:
        """Whether the current tag is one of these; None: there is nothing to have a tag."""
        if tag is None:
            return False
        if self.any:
            return True
        opaque = tag.removeprefix("W/")
        if weakly:
            return opaque in self.strong or opaque in self.weak
        return tag in self.strong  # a weak tag matches nothing


class Preconditions(msgspec.Struct, frozen=True):
    """What must hold for a request to be carried out."""

    if_match: EntityTags | None = None
    if_none_match: EntityTags | None = None

    @classmethod
    def of(cls, if_match: str | None, if_none_match: str | None) -> Preconditions:
        return cls(
            None if if_match is None else EntityTags.parse("If-Match", if_match),
            None if if_none_match is None else EntityTags.parse("If-None-Match", if_none_match),
        )

    def hold(self, tag: str | None) -> bool:
        """Whether a write may go on."""
        if self.if_match is not None and not self.if_match.match(tag, weakly=False):
            return False
        return self.if_none_match is None or not self.if_none_match.match(tag, weakly=True)

    def unchanged(self, tag: str) -> bool:
        """Whether a read may answer that nothing has changed."""
        return self.if_none_match is not None and self.if_none_match.match(tag, weakly=True)
