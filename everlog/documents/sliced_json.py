"""Large JSON, decoded slice by slice: the decoder holds the interpreter while it works, and others wait for it.

Equal to decoding the whole at once, also in what is refused. The text is cut at commas of lists and objects that are
larger than a slice; what lies between two cuts is decoded as a list or an object of its own. Only brackets, braces,
strings and a few commas between them are looked at here; all else is the decoder's, which sees every byte but those of
the cuts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

SLICE_BYTES = 8 * 1024
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_KEY = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*', re.DOTALL)
_ENDS = {b"]": b"[", b"}": b"{"}

Decode = Callable[[bytes, int], Any]
"""decode(text, levels above it)"""


class _Open:
    """A list or an object that has begun: what was decoded of it, and from where it was not."""

    __slots__ = ("begin", "comma", "found", "is_list", "opened", "sliced", "taken")

    def __init__(self, bracket: bytes, opened: int) -> None:
        self.is_list = bracket == b"["
        self.opened = opened
        self.begin = opened + 1
        self.comma = opened  # the last comma of its own, or its bracket
        self.found: Any = [] if self.is_list else {}
        self.sliced = False
        self.taken = False  # behind the last comma stands a value that was sliced itself


def decode_sliced(data: bytes, decode: Decode, *, max_depth: int) -> Any:
    """What the JSON says; msgspec.DecodeError if it is none, or has more levels."""
    if len(data) <= SLICE_BYTES:
        return decode(data, 0)
    return _Slicing(data, decode, max_depth).run()


class _Slicing:
    def __init__(self, data: bytes, decode: Decode, max_depth: int) -> None:
        self._data = data
        self._decode = decode
        self._max_depth = max_depth
        self._open: list[_Open] = []

    def run(self) -> Any:
        data, stack, behind = self._data, self._open, 0
        for token in _TOKEN.finditer(data):
            at = token.start()
            mark = data[at : at + 1]
            if stack:
                self._pass(stack[-1], behind, at)
            behind = token.end()
            if mark in b"[{":
                if stack and stack[-1].taken:
                    break
                stack.append(_Open(mark, at))
                if len(stack) > self._max_depth + 1:
                    raise msgspec.DecodeError(f"more than {self._max_depth} levels")
            elif mark in b"]}":
                if not stack or stack[-1].is_list != (_ENDS[mark] == b"["):
                    break
                one = stack.pop()
                if not stack:
                    return self._root(one, at)
                if one.sliced or at - one.begin >= SLICE_BYTES:
                    self._close(one, at)
                    self._take(stack[-1], one, at)
        return self._decode(data, 0)  # it has no end, or is no list and no object: the decoder says so

    def _pass(self, owner: _Open, begin: int, end: int) -> None:
        """What lies between two strings or brackets: cut at its commas where there is enough to decode."""
        last = self._data.rfind(b",", begin, end)
        if last < 0:
            return
        if owner.taken:
            at = self._data.find(b",", begin, end)
            self._check_blank(owner.begin, at)
            owner.taken, owner.begin, owner.comma = False, at + 1, at
        while last - owner.begin >= SLICE_BYTES:
            at = self._data.find(b",", max(begin, owner.begin + SLICE_BYTES), end)
            self._cut(owner, at)
        owner.comma = last

    def _cut(self, owner: _Open, at: int) -> None:
        """Decode what stands before a comma, which is never nothing."""
        if not self._data[owner.begin : at].strip():
            raise msgspec.DecodeError(f"a value is missing (byte {at})")
        self._decode_group(owner, at)
        owner.begin = at + 1

    def _close(self, one: _Open, at: int) -> None:
        """The bracket at its end: what is left is decoded."""
        if one.taken:
            self._check_blank(one.begin, at)
        else:
            self._decode_group(one, at)

    def _decode_group(self, owner: _Open, at: int) -> None:
        text = self._data[owner.begin : at]
        if not text.strip() and owner.sliced:
            raise msgspec.DecodeError(f"a value is missing (byte {at})")
        owner.sliced = True
        if owner.is_list:
            owner.found += self._decode(b"[" + text + b"]", len(self._open))
        else:
            owner.found.update(self._decode(b"{" + text + b"}", len(self._open)))

    def _take(self, owner: _Open, one: _Open, at: int) -> None:
        """A value that was decoded here goes into what it stands in, behind what stands before it."""
        if owner.comma >= owner.begin:
            self._cut(owner, owner.comma)
        before = self._data[owner.begin : one.opened]
        if owner.is_list:
            self._check_blank(owner.begin, one.opened)
            owner.found.append(one.found)
        else:
            key = _KEY.fullmatch(before)
            if key is None:
                raise msgspec.DecodeError(f"a name is missing (byte {one.opened})")
            owner.found[self._decode(key[1], 0)] = one.found
        owner.sliced = owner.taken = True
        owner.begin = at + 1

    def _root(self, one: _Open, at: int) -> Any:
        if not one.sliced:
            return self._decode(self._data, 0)
        self._close(one, at)
        self._check_blank(0, one.opened)
        self._check_blank(at + 1, len(self._data))
        return one.found

    def _check_blank(self, begin: int, end: int) -> None:
        if self._data[begin:end].strip(b" \t\r\n"):
            raise msgspec.DecodeError(f"something is in excess (byte {begin})")
