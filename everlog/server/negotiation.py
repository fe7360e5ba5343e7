"""What kind of answer a client takes: HAL or plain JSON, packed or not (RFC 9110, sections 8 and 12).

A body with `_links` or `_embedded` is `application/hal+json`, unless the client would rather have `application/json`:
then the same body has that type. Answers of 1,400 bytes or more are packed with gzip where the client takes it. A
packed body is another representation, so its strong tag is another one, with `-gzip` at its end; requests may send
either.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import Any

from litestar import Response

from everlog.documents.ids import PACKED
from everlog.server.errors import JSON
from everlog.server.requests import AnyRequest

HAL = "application/hal+json"
MIN_PACKED_BYTES = 1400  # less fits into one packet as it is
MAX_INLINE_BYTES = 64 * 1024  # more is packed in a thread
LEVEL = 5


def hal_type(request: AnyRequest) -> str:
    """The type of a HAL body for this client; what is named counts before what a `*` covers."""
    accepted = request.headers.get("accept", "*/*")
    return JSON if _rank(accepted, JSON) > _rank(accepted, HAL) else HAL


def wants_gzip(request: AnyRequest) -> bool:
    """Whether the client takes it.

    Of no header at all nothing is known, so nothing is packed.
    """
    accepted = request.headers.get("accept-encoding")
    return accepted is not None and _rank(accepted, "gzip")[0] > 0


def _rank(accepted: str, name: str) -> tuple[float, int]:
    """How much a name is wanted, and how exactly it is meant.

    >>> _rank("application/json;q=0.5, */*;q=0.1", "application/json"), _rank("gzip;q=0", "gzip")
    ((0.5, 2), (0.0, 2))
    """
    found = (0.0, 0)
    exactness = -1
    for part in accepted.lower().split(","):
        kind, *parameters = [piece.strip() for piece in part.split(";")]
        if kind == name:
            exact = 2
        elif kind.endswith("/*") and kind != "*/*" and name.startswith(kind[:-1]):
            exact = 1
        elif kind in ("*/*", "*"):
            exact = 0
        else:
            continue
        if exact > exactness:
            exactness, found = exact, (_quality(parameters), exact)
    return found


def _quality(parameters: list[str]) -> float:
    for one in parameters:
        if re.fullmatch(r"q\s*=\s*[01](\.\d{0,3})?", one):
            return float(one.partition("=")[2])
    return 1.0


def tag_for(request: AnyRequest, etag: str, size: int) -> str:
    """The tag of an answer of this size."""
    packed = size >= MIN_PACKED_BYTES and wants_gzip(request) and not etag.startswith("W/")
    return f'{etag[:-1]}{PACKED}"' if packed else etag


async def packed(request: AnyRequest, answer: Response[Any]) -> Response[Any]:
    """The answer as this client takes it; streams stay as they are."""
    vary = answer.headers.get("Vary")
    body = answer.content
    if not isinstance(body, bytes):
        return answer
    answer.headers["Vary"] = "Accept-Encoding" if vary is None else f"{vary}, Accept-Encoding"
    if len(body) < MIN_PACKED_BYTES or answer.status_code != 200 or not wants_gzip(request):
        return answer
    inline = len(body) <= MAX_INLINE_BYTES
    answer.content = _pack(body) if inline else await asyncio.to_thread(_pack, body)
    answer.headers["Content-Encoding"] = "gzip"
    return answer


def _pack(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)
