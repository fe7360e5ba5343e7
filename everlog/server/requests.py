"""Reading requests: paths as they were sent, parameters, and bodies that have an end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from litestar import Request
from litestar.datastructures import Headers
from litestar.types import Receive, Scope

from everlog.errors import InvalidDocument

# The longest that a request may ask to wait.
MAX_WAIT_S = 60.0
YES, NO = ("", "1", "true", "yes"), ("0", "false", "no")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

AnyRequest = Request[Any, Any, Any]


class HeldRequest(Request[Any, Any, Any]):
    """Makes its headers once: guards, routes and answers ask for a dozen of them."""

    headers = cached_property(lambda self: Headers.from_scope(self.scope))


def raw_rest(request: AnyRequest, prefix: str) -> str:
    """The path behind a prefix, not yet decoded: an encoded slash is not a separator."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0]
    return path.removeprefix(prefix)


@lru_cache(maxsize=256)
def decode(text: str) -> str:
    """A percent-encoded piece of a path as text."""
    if _ESCAPE.search(text):
        raise InvalidDocument("invalid-path", "a '%' in a path is followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise InvalidDocument("invalid-path", "a path is UTF-8") from error


def local_path(text: str | None) -> str:
    """Where to go after a log-in or an action: only to pages of this server.

    >>> local_path("/tags?x=1"), local_path("//elsewhere"), local_path("https://elsewhere")
    ('/tags?x=1', '/', '/')
    """
    if text is None:
        return "/"
    sound = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if sound else "/"


def parameters(request: AnyRequest) -> dict[str, str]:
    """The query parameters; of one that comes twice, the last."""
    query = request.scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100))
    except ValueError as error:
        raise InvalidDocument("invalid-parameter", f"the query cannot be read: {error}") from error


def whole_number(given: dict[str, str], name: str) -> int | None:
    """A parameter that is a number."""
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise InvalidDocument("invalid-parameter", f"{name} is a whole number, not {text[:50]!r}", parameter=name)
    return int(text)


def flag(given: dict[str, str], name: str) -> bool:
    """A parameter that says yes by being there, unless it says no; a value that says neither is refused."""
    said = given.get(name, "no").lower()
    if said not in (*YES, *NO):
        message = f"{name} is 1 or 0, true or false, yes or no, not {given[name][:50]!r}"
        raise InvalidDocument("invalid-parameter", message, parameter=name)
    return said in YES


def check_bare(given: dict[str, str], name: str, *also: str) -> None:
    """Refuse a value of a parameter that takes none, or only some."""
    if given[name].lower() not in (*YES, *also):
        takes = " or ".join([repr(one) for one in also])
        message = f"{name} takes no value{takes and f', or {takes}'}"
        raise InvalidDocument("invalid-parameter", message, parameter=name)


def has_come(scope: Scope) -> bool:
    """Whether the whole body is here, and need not be waited for: as the protocol says, where it is ours."""
    said: Callable[[], bool] | None = scope["state"].get("has_come")
    return said is not None and said()


def in_time(scope: Scope, receive: Receive, seconds: float, *, streamed: bool = False) -> Receive:
    """The same messages, but a body must be there within `seconds`, in whichever handler it is read; if it is
    `streamed`, each piece of it within `seconds` of being asked for.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    whole = False

    async def received() -> Any:
        nonlocal whole, deadline
        # Behind the body only the end of the connection follows, which may be far.
        if whole or has_come(scope):
            return await receive()
        if streamed:
            deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError as error:
            raise InvalidDocument("body-too-slow", f"the body did not come within {seconds:g} s") from error
        whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return received


async def read_body(
    request: AnyRequest, *, limit: int, seconds: float, setting: str = "[documents] max_body_bytes"
) -> bytes:
    """The whole body; too much of it or too slow is an error. `setting`: what the limit is called."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit, setting)
    chunks: list[bytes] = []
    size = 0
    try:
        async with nullcontext() if has_come(request.scope) else asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit, setting)
                chunks.append(chunk)
    except TimeoutError as error:
        raise InvalidDocument("body-too-slow", f"the body did not come within {seconds:g} s") from error
    return b"".join(chunks)


def _too_large(limit: int, setting: str) -> InvalidDocument:
    return InvalidDocument("body-too-large", f"a body has at most {limit:,} bytes ({setting})")
