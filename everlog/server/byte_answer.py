"""An answer whose body is bytes already: nothing of it is left to the framework but to send it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from litestar import Response
from litestar.types import Receive, Scope


@lru_cache(maxsize=512)
def _name(text: str) -> bytes:
    return text.lower().encode("latin-1")


class ByteAnswer(Response[Any]):
    """A status, headers and bytes; without a body there is neither type nor length.

    >>> ByteAnswer(b"1", headers={"ETag": '"1"'}).head()
    [(b'etag', b'"1"'), (b'content-type', b'application/json'), (b'content-length', b'1')]
    """

    def __init__(
        self,
        content: bytes | None,
        *,
        status_code: int = 200,
        media_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Not that of the base, which prepares what nothing here has: background tasks, and encoders.
        self.content = content
        self.status_code = status_code
        self.media_type: str = media_type
        self.headers = dict(headers or {})
        self.cookies = []

    def head(self) -> list[tuple[bytes, bytes]]:
        found = {_name(name): value.encode("latin-1") for name, value in self.headers.items()}
        if self.content is not None:
            found.setdefault(b"content-type", self.media_type.encode("latin-1"))
            found[b"content-length"] = b"%d" % len(self.content)
        return [*found.items(), *(cookie.to_encoded_header() for cookie in self.cookies)]

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        """The same as the framework sends it: it is an answer as it is, whatever the route says about answers."""
        return self._send

    async def _send(self, scope: Scope, receive: Receive, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.head()})
        await send({"type": "http.response.body", "body": self.content or b"", "more_body": False})
