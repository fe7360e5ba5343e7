"""Patterns of document paths: which documents a token may reach.

    /shop/settings      this document
    /shop/orders~       this collection with its elements
    /tenants/*/orders~  `*` is one whole segment, whatever it is
    /public/**          `**` at the end is one segment or more: all that is below, not `public` itself

The invariant: a path fits only if each of its segments is met by one of the pattern, compared character by character.
There is no other syntax, no case folding, and nothing is decoded: both sides are paths as documents have them.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_PATTERN_BYTES = 1024
_REST = "**"
_ONE = "*"


class PathPattern(NamedTuple):
    """A pattern, segment by segment; made by `parse`.

    >>> PathPattern.parse("/shop/orders~").matches("shop/orders~/o-1")
    True
    >>> PathPattern.parse("/public/**").matches("public"), PathPattern.parse("/public/**").matches("public/a/b")
    (False, True)
    """

    segments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> PathPattern:
        """The pattern that a text says; ValueError says what is wrong with it."""
        if not text.startswith("/"):
            raise ValueError(f"a path pattern begins with '/', as /shop/** does; not {text!r}")
        if len(text.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
            raise ValueError(f"a path pattern has at most {MAX_PATTERN_BYTES:,} bytes")
        segments = text[1:].split("/")
        for number, segment in enumerate(segments):
            _check_segment(text, segment, last=number == len(segments) - 1)
        return cls(tuple(segments))

    def matches(self, path: str) -> bool:
        """Whether a document, a collection or an element is one of these; elements belong to their collection."""
        return self._belongs(path.split("/"))

    def covers(self, template: str) -> bool:
        """Whether all paths that a view's template can match are among these.

        A parameter stands for any text in its segment, so only `*` or `**` can meet it. False may also mean that it
        takes several patterns to cover the template: then it is not said by one, and does not count.

        >>> PathPattern.parse("/people/*").covers("people/{name}"), PathPattern.parse("/people/a").covers("people/a{*}")
        (True, False)
        """
        return self._belongs(template.split("/"))

    def _belongs(self, segments: list[str]) -> bool:
        in_collection = len(segments) > 1 and segments[-2].endswith("~")
        return self._fits(segments) or (in_collection and self._fits(segments[:-1]))

    def _fits(self, segments: list[str]) -> bool:
        own = self.segments
        if own[-1] == _REST:
            if len(segments) < len(own):
                return False
            own, segments = own[:-1], segments[: len(own) - 1]
        if len(segments) != len(own):
            return False
        return all(wanted in (_ONE, given) for wanted, given in zip(own, segments, strict=True))

    def __str__(self) -> str:
        return "/" + "/".join(self.segments)


def _check_segment(text: str, segment: str, *, last: bool) -> None:
    if segment == _REST and not last:
        raise ValueError(
            f"'**' stands at the end of a path pattern, not in the middle as in {text!r}: '*' is one segment"
        )
    if segment in (_ONE, _REST):
        return
    if not segment or segment in (".", ".."):
        raise ValueError(f"the segments of a path pattern are neither empty nor '.' or '..', as in {text!r}")
    if "*" in segment:
        raise ValueError(f"'*' stands for a whole segment, not for a part of one as in {text!r}")
    if any(character in segment for character in "%{}") or not segment.isprintable():
        raise ValueError(
            f"a path pattern is written as the path itself, without %-encoding, braces or control characters: {text!r}"
        )
