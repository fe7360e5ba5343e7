"""What the routes of documents share: where the documents are, bodies, paths."""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.config import DocumentsConfig
from everlog.documents.api import Documents
from everlog.documents.bodies import decode_body
from everlog.errors import InvalidDocument
from everlog.server.document_answers import PREFIX
from everlog.server.requests import AnyRequest, decode, raw_rest, read_body

CONTENT = f"{PREFIX}/content/"


def documents_of(request: AnyRequest) -> Documents:
    found: Documents = request.app.state.documents
    return found


def config_of(request: AnyRequest) -> DocumentsConfig:
    found: DocumentsConfig = request.app.state.config.documents
    return found


def correlation(request: AnyRequest) -> dict[str, str]:
    """The request's own id comes back with the answer."""
    found = request.headers.get("hyperbus-correlation-id")
    return {} if found is None else {"Hyperbus-Correlation-Id": found}


def content_path(request: AnyRequest) -> str:
    return decode(raw_rest(request, CONTENT))


async def body_bytes(request: AnyRequest) -> bytes:
    config = config_of(request)
    return await read_body(request, limit=config.max_body_bytes, seconds=config.request_timeout_s)


def typed_body(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.convert(decode_body(data), kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument("invalid-body", f"this body is not what is expected here: {error}") from error


def segments(request: AnyRequest, prefix: str, most: int) -> list[str]:
    """Percent-encoded segments behind a prefix."""
    found = [decode(segment) for segment in raw_rest(request, f"{PREFIX}/{prefix}/").split("/")]
    if not 1 <= len(found) <= most or not all(found):
        raise InvalidDocument("invalid-path", "a slash inside a path or an id is written as %2F here")
    return found
