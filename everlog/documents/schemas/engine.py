"""JSON Schema as `jsonschema-rs` has it, with the doors shut: nothing is fetched, and patterns take linear time.

This file is also the program of the process that validates (`examiner.py`): it needs no other module of ours, so that
the process starts quickly. A request is a frame `[version, schema or null, body or null, seconds]`; the answers are
frames that say more and more: whether the body fits, the first place where it does not, and up to twenty. A process
that runs out of computing time or memory is ended by the kernel; what it said before still holds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import BinaryIO, Literal

import jsonschema_rs
import msgspec

MAX_ERRORS = 20
MAX_TEXT = 300
MAX_POINTER = 500
MAX_PROGRAM_BYTES = 256 * 1024
MAX_AUTOMATON_BYTES = 1024 * 1024
MAX_MEMORY_BYTES = 1024**3
MAX_DETAILED_BYTES = 256 * 1024
DETAILS_S = 0.3
GAVE_UP = 99
_FRAME = struct.Struct(">I")

Answer = tuple[Literal["fits", "refused", "unfit", "end"], list[tuple[str, str, str]]]

decode = msgspec.json.Decoder(float_hook=Decimal).decode
_requests = msgspec.json.Decoder(tuple[str, str | None, str | None, float]).decode
answers = msgspec.json.Decoder(Answer).decode
encode = msgspec.json.Encoder().encode


def compile_schema(text: str) -> jsonschema_rs.Validator:
    """A validator; ValueError if this is no schema that can be used here."""
    return jsonschema_rs.validator_for(
        decode(text),
        validate_formats=True,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PROGRAM_BYTES, dfa_size_limit=MAX_AUTOMATON_BYTES),
        offline=True,
    )


def pointer(parts: list[str | int]) -> str:
    """A JSON pointer; of a long one, the beginning.

    >>> pointer(["a/b", 0])
    '/a~1b/0'
    """
    text = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in itertools.islice(parts, 200))
    return text if len(text) <= MAX_POINTER else text[:MAX_POINTER] + "…"


def first_line(text: str) -> str:
    """An error's own words without the schema and the body that the library shows behind them."""
    line = text.partition("\n")[0]
    return line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "…"


def _place(error: jsonschema_rs.ValidationError) -> tuple[str, str, str]:
    return pointer(error.instance_path), pointer(error.schema_path), first_line(error.message)


def examine(validator: jsonschema_rs.Validator, text: str) -> Iterator[Answer]:
    """What there is to say about a body, in ever more detail."""
    body = decode(text)
    if validator.is_valid(body):
        yield "fits", []
        return
    yield "unfit", []
    _limit(DETAILS_S)
    try:
        validator.validate(body)
    except jsonschema_rs.ValidationError as error:
        yield "unfit", [_place(error)]
    if len(text) <= MAX_DETAILED_BYTES:
        found = itertools.islice(validator.iter_errors(body), MAX_ERRORS)
        yield "unfit", [_place(error) for error in found]


def _limit(seconds: float) -> None:
    """Computing time from now on; the kernel ends this process after it. 0: none."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _read(stream: BinaryIO) -> bytes:
    """A frame; nothing at the end of the stream."""
    head = stream.read(_FRAME.size)
    return stream.read(_FRAME.unpack(head)[0]) if len(head) == _FRAME.size else b""


def frame(data: bytes) -> bytes:
    return _FRAME.pack(len(data)) + data


def _answer(stream: BinaryIO, answer: Answer) -> None:
    stream.write(frame(encode(answer)))
    stream.flush()


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    known: dict[str, jsonschema_rs.Validator] = {}
    while data := _read(requests):
        version, schema, body, seconds = _requests(data)
        _limit(seconds)
        try:
            if schema is not None:
                known[version] = compile_schema(schema)
            if body is not None:
                for answer in examine(known[version], body):
                    _answer(replies, answer)
        except jsonschema_rs.ValidationError as error:
            _answer(replies, ("refused", [_place(error)]))
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            _answer(replies, ("refused", [("", "", first_line(str(error)))]))
        _limit(0)
        _answer(replies, ("end", []))


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this one
    with contextlib.suppress(ValueError, OSError):  # where a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except BaseException:  # no memory, a panic of the library: this pair of schema and body is too much
        os._exit(GAVE_UP)


if __name__ == "__main__":
    main()
