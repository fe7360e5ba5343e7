"""Users' JSON as text: written strictly, and carried without being taken apart.

What goes in has finite numbers, valid Unicode, and at most `MAX_DEPTH` levels, whatever Python's stack has room for.
What other programs have written into the log may be nested deeper: it is kept as it is, and an error only for a caller
that looks inside.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from everlog.errors import InvalidInput, UnreadableJson

MAX_DEPTH = 128
# Levels that are decoded at once if a text is deeper than the stack allows.
_LEVELS = 16
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_SAME_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(code for code in range(256) if code not in b'[]{}"')
_PLAIN = (str, bytes, int, type(None), msgspec.Raw)
_NESTED = (dict, list, tuple)


def plain_value(value: Any) -> Any:
    """For encoders: a `Version`, or another kind of int, float or text, is written as what it is.

    A pydantic model is written as its fields, without what it computes from them: a model may refuse to be given that.
    It is known by its method, because pydantic need not be installed.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"objects of type {type(value).__name__} cannot be written as JSON")
    return dump(mode="json", by_alias=True, round_trip=True)


_encode = msgspec.json.Encoder(enc_hook=plain_value).encode
_decode = msgspec.json.Decoder().decode
_pass_over = msgspec.json.Decoder(msgspec.Raw).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def encode_json(what: str, value: Any) -> str:
    """A user's value as JSON, or InvalidInput that says what is wrong with it.

    >>> encode_json("payload", {"placed": 3})
    '{"placed":3}'
    """
    try:
        try:
            text = _encode(value)
            _pass_over(text)  # what was JSON already got here unseen
        except RecursionError:
            text = _encode_from_inside(what, value)
            _pass_over(CutJson(text).shell)
        if isinstance(value, msgspec.Raw) and not is_deep(text):
            _decode(text)  # its numbers were not checked before
        found = text.decode()
    except InvalidInput:
        raise
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the {what} is not JSON that every reader can decode: {error}") from error
    except (TypeError, ValueError, OverflowError, BufferError) as error:
        raise InvalidInput(f"the {what} cannot be written as JSON: {error}") from error
    if is_deep(text):
        raise _too_deep(what)
    # As which other numbers than finite ones are written: as a value, and as the name of a member.
    if "null" in found or 'nan":' in found or 'inf":' in found:
        _check_finite(what, value)
    return found


def is_deep(text: bytes, max_depth: int = MAX_DEPTH) -> bool:
    """Whether JSON has more levels of arrays and objects than this.

    >>> is_deep(b'[{"a": "]"}, []]', 1), is_deep(b'[{"a": "]"}, []]', 2)
    (True, False)
    """
    if len(text) <= 2 * max_depth or text.count(b"[") + text.count(b"{") <= max_depth:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Of most strings only the quotes are left, and of those two side by side do not matter.
    left = text.translate(_SAME_BRACKETS, _NO_BRACKETS).replace(b'""', b"")
    brackets = b"".join(left.split(b'"')[::2])
    for _ in range(max_depth):  # each turn takes away the innermost level
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def decode_json(text: str | bytes, shown: str, *, max_depth: int | None = None, wide: bool = False) -> Any:
    """Stored JSON as Python objects, or UnreadableJson; `shown` says where its text is.

    `max_depth`: more levels are refused even if the stack has room for them. `wide`: numbers that no float can hold are
    Decimals.
    """
    try:
        if max_depth is not None and is_deep(_bytes(text), max_depth):
            raise RecursionError
        return _decode(text)
    except RecursionError:
        limit = MAX_DEPTH if max_depth is None else max_depth
        if not is_deep(_bytes(text), limit):
            raise  # it is the caller's stack that is used up
        raise UnreadableJson(f"it has more than {limit} levels", shown) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if wide:
            with contextlib.suppress(msgspec.DecodeError, ArithmeticError):
                return _decode_wide(text)
        raise UnreadableJson(str(error), shown) from error


def _float_or_decimal(text: str) -> float | Decimal:
    """A number that no float can hold comes from a document, which keeps every digit."""
    found = float(text)
    return found if math.isfinite(found) else Decimal(text)


_decode_wide = msgspec.json.Decoder(float_hook=_float_or_decimal).decode


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class CutJson:
    """JSON without what lies deep inside, so that it can be decoded on any stack.

    `shell` is the text with a number in place of each such part; `restore` puts the parts back. Malformed JSON is a
    `msgspec.DecodeError`, here or when the shell is decoded, just as if the text had been decoded in one go.
    """

    def __init__(self, text: bytes) -> None:
        name = b"1868107370655149"
        while name in text:
            name += b"7"
        self._name = name
        self._parts: list[bytes] = []
        self.shell = self._cut(text)

    def restore(self, raw: bytes) -> bytes:
        """A piece of the shell as it was in the text."""
        return re.sub(rb" ?%b([0-9]{9}) ?" % self._name, lambda found: self._parts[int(found[1])], raw)

    def _cut(self, text: bytes) -> bytes:
        outer: list[tuple[int, list[bytes]]] = []
        pieces: list[bytes] = []
        depth = copied = 0
        for token in _TOKEN.finditer(text):
            kind = text[token.start()]
            if kind in b"[{":
                if depth and depth % _LEVELS == 0:
                    pieces.append(text[copied : token.start()])
                    outer.append((token.start(), pieces))
                    pieces, copied = [], token.start()
                depth += 1
            elif kind in b"]}":
                depth -= 1
                if depth < 0:
                    break
                if depth and depth % _LEVELS == 0:
                    pieces.append(text[copied : token.end()])
                    _pass_over(b"".join(pieces))
                    start, pieces = outer.pop()
                    pieces.append(b" 0 " if outer else self._keep(text[start : token.end()]))
                    copied = token.end()
        if depth != 0:
            raise msgspec.DecodeError("JSON is malformed: brackets without a counterpart")
        pieces.append(text[copied:])
        return b"".join(pieces)

    def _keep(self, part: bytes) -> bytes:
        """A number between blanks: it fits where a value does, and nowhere else."""
        self._parts.append(part)
        return b" %b%09d " % (self._name, len(self._parts) - 1)


def members_of(text: bytes) -> dict[str, bytes]:
    """The members of an object, each as its own text, however deep it is; `msgspec.DecodeError` if it is no object.

    >>> members_of(b'{"data": [1]}')
    {'data': b'[1]'}
    """
    try:
        return {name: bytes(raw) for name, raw in _decode_members(text).items()}
    except RecursionError:
        cut = CutJson(text)
        return {name: cut.restore(bytes(raw)) for name, raw in _decode_members(cut.shell).items()}


def _check_finite(what: str, value: Any) -> None:
    """Without recursion: JSON has no other numbers, and the encoder would write null."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, float):
            if not math.isfinite(found):
                raise InvalidInput(f"the {what} has the number {found}: JSON has finite ones only, send text or null")
        elif isinstance(found, _PLAIN):
            continue
        elif isinstance(found, dict):
            waiting.extend(found)
            waiting.extend(found.values())
        elif isinstance(found, list | tuple | set | frozenset):
            waiting.extend(found)
        else:
            waiting.append(msgspec.to_builtins(found, enc_hook=plain_value))


class _OpenContainer:
    """A dict, list or tuple, and what of it is done."""

    __slots__ = ("done", "rest", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.rest: Iterator[Any] = iter(value.values() if isinstance(value, dict) else value)
        self.done: list[Any] = []

    def encoded(self) -> msgspec.Raw:
        done = dict(zip(self.value, self.done, strict=True)) if isinstance(self.value, dict) else self.done
        return msgspec.Raw(_encode(done))


def _encode_from_inside(what: str, value: Any) -> bytes:
    """For a value that the encoder finds too deep for the stack: its containers one by one, the innermost first."""
    opened = [_OpenContainer([value])]
    while True:
        current = opened[-1]
        for child in current.rest:
            if isinstance(child, _NESTED):
                if len(opened) > MAX_DEPTH:
                    raise _too_deep(what)
                opened.append(_OpenContainer(child))
                break
            current.done.append(child)
        else:
            try:
                text = current.encoded()
            except RecursionError:
                raise _too_deep(what) from None
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidInput(f"the {what} cannot be written as JSON: {error}") from error
            opened.pop()
            if not opened:
                return bytes(text)[1:-1]
            opened[-1].done.append(text)


def _too_deep(what: str) -> InvalidInput:
    return InvalidInput(f"the {what} has more than {MAX_DEPTH} levels of arrays and objects: flatten it, or send text")
