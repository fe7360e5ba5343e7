"""Large pieces of answers go out one at a time, with a pause between them in which all others are served.

Each of many streams may have a large piece ready at the same moment, and what one turn of the event loop does for all
of them would hold up every small request. So whoever makes or sends a large piece takes a turn first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from litestar import Response
from litestar.response import Stream

LARGE_BYTES = 16 * 1024
PIECE_BYTES = 64 * 1024
PAUSE_S = 0.002


class LargeTurns:
    """The turns of one server."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def take(self, size: int) -> None:
        """Wait until a piece of this size may be made or sent; at once, if it is small."""
        if size > LARGE_BYTES:
            async with self._turn:
                await asyncio.sleep(PAUSE_S)

    def pieced(self, answer: Response[Any]) -> Response[Any]:
        """The same answer; a large body goes out in pieces, each when the client has taken those before it."""
        body = answer.content
        if not isinstance(body, bytes) or len(body) <= PIECE_BYTES:
            return answer

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(body), PIECE_BYTES):
                await self.take(PIECE_BYTES)
                yield body[at : at + PIECE_BYTES]

        headers = {**answer.headers, "Content-Length": str(len(body))}
        return Stream(pieces, status_code=answer.status_code, media_type=answer.media_type, headers=headers)
