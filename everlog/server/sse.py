"""Server-sent events: every frame has an id from which the stream can be resumed.

A checkpoint says that nothing up to its id was left out. One comes at once, then at a steady interval and after every
1,000 events that were passed over. A reader that is too slow is cut by the connection (protocol.py); it goes on
behind the last id it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from litestar.response import Stream

from everlog.errors import EverlogError
from everlog.server.errors import describe
from everlog.server.request_watch import HttpCounters
from everlog.wire.errors import status_of

MAX_SKIPPED = 1000


class Frame(NamedTuple):
    """An event. `data` is one line. One without an id is no place to resume from."""

    id: str
    event: str
    data: str

    def text(self) -> str:
        place = f"id: {self.id}\n" if self.id else ""
        return f"{place}event: {self.event}\ndata: {self.data}\n\n"


class Checkpoint(NamedTuple):
    """Nothing up to `id` was left out; `skipped` events since the last item were not for this reader."""

    id: str
    skipped: int = 0


KEEP_ALIVE = b":\n\n"
"""A comment: shows the reader of a stream without a place yet that it is alive."""

Items: TypeAlias = AsyncGenerator[Sequence[Frame] | Checkpoint, None]


def stream_answer(frames: Callable[[], AsyncIterator[bytes]]) -> Stream:
    """The response; `frames` is called once the head is out."""
    return Stream(frames, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def event_stream(
    items: Items,
    *,
    checkpoint: Callable[[str], str],
    interval_s: float,
    stopping: asyncio.Event,
    counters: HttpCounters,
    begin: str | None = None,
) -> AsyncIterator[bytes]:
    """Items on the wire, until they end or the server stops. `checkpoint` makes a checkpoint's data of its id.

    `begin` is where the reader stands before anything was read; without it the first checkpoint comes from the items.
    """
    last, due, skipped, told = begin, 0.0, 0, False
    loop = asyncio.get_running_loop()
    stop = asyncio.create_task(stopping.wait())
    pending = asyncio.ensure_future(anext(items))
    counters.streams += 1
    try:
        while True:
            patience = interval_s if last is None else max(0.0, due - loop.time())
            done, _ = await asyncio.wait({pending, stop}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if stop in done:
                return
            if pending in done:
                item = pending.result()
                caught_up = isinstance(item, Checkpoint) and not told
                pending = asyncio.ensure_future(anext(items))
                if isinstance(item, Checkpoint):
                    last, skipped = item.id, skipped + item.skipped
                elif item:
                    last, due = item[-1].id or last, due or loop.time() + interval_s
                    yield "".join([frame.text() for frame in item]).encode()
            else:
                caught_up = False
                if last is None:
                    yield KEEP_ALIVE
            if last is not None and (caught_up or loop.time() >= due or skipped >= MAX_SKIPPED):
                yield Frame(last, "checkpoint", checkpoint(last)).text().encode()
                due, skipped, told = loop.time() + interval_s, 0, True
    except StopAsyncIteration:
        return
    except EverlogError as error:
        # The head is out: the reason goes into the stream; unless the error is final, the reader reconnects.
        known = msgspec.to_builtins(describe(error, ""))
        reason = msgspec.json.encode({**known, "status": status_of(error)}).decode()
        yield Frame(last or "", "failed", reason).text().encode()
    finally:
        counters.streams -= 1
        stop.cancel()
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, EverlogError):
            await pending
        await items.aclose()
