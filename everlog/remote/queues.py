"""Queues of a server, as the same store that local ones are: `Queue` and `Worker` do not know the difference.

Operations that are ready at the same moment travel in one request, as they share one commit where the files are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgspec

from everlog.errors import AnswerLost, EverlogError, MissingExtra, QueueNotFound, StorageFailed, Unreachable
from everlog.queues.declaration import Declaration
from everlog.queues.operations import READS, Operation, Put, PutAnswer, QueueAnswer
from everlog.queues.port import PUT_AT_ONCE, QueueStore
from everlog.queues.rows import Packet
from everlog.queues.wire import MEDIA_TYPE, WireOutcome, decode_outcomes, encode_operations
from everlog.remote.connection import refusal_of
from everlog.runtime.clock import Clock
from everlog.runtime.supervisor import asks_to_end

try:
    import httpx
except ImportError as error:
    raise MissingExtra("server") from error

logger = logging.getLogger("everlog.queues")

TIMEOUT_S = 30.0
MAX_BATCH = 256
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_WAIT_S = 20.0
RETRY_PAUSE_S = 1.0
REFRESH_INTERVAL_S = 5.0
T = TypeVar("T")
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class _Request(NamedTuple):
    operation: Operation
    future: asyncio.Future[QueueAnswer]


class _Known(NamedTuple):
    since: float
    declaration: Declaration


class RemoteQueueStore(QueueStore):
    """The queues of a server."""

    def __init__(self, http: httpx.AsyncClient, clock: Clock, *, owns_client: bool = False) -> None:
        super().__init__(clock)
        self._http = http
        self._owns_client = owns_client
        self._gathered: dict[str, list[_Request]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._known: dict[str, _Known] = {}

    async def declare(self, wanted: Declaration) -> Declaration:
        body = msgspec.to_builtins(wanted)
        del body["name"]
        answer = await self._call("PUT", _url(wanted.name), content=msgspec.json.encode(body))
        return self._remember(answer)

    async def declared(self, name: str) -> Declaration | None:
        known = self._known.get(name)
        if known is not None and self.clock.monotonic() - known.since < REFRESH_INTERVAL_S:
            return known.declaration
        try:
            return self._remember(await self._call("GET", _url(name)))
        except QueueNotFound:
            return None

    def _remember(self, answer: httpx.Response) -> Declaration:
        found = _decoded(answer, _DeclarationBody).declaration
        self._known[found.name] = _Known(self.clock.monotonic(), found)
        return found

    async def delete(self, name: str, *, running: bool = False) -> int:
        self.forget(name)
        try:
            answer = await self._call("DELETE", _url(name), params={"running": running})
        except _Lost as lost:
            raise AnswerLost(name, str(lost)) from lost
        self.forget(name)
        return _decoded(answer, _CountBody).count

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    async def names(self) -> list[str]:
        answer = await self._call("GET", "/queues")
        return _decoded(answer, _NamesBody).queues

    async def execute(self, name: str, operation: Operation) -> QueueAnswer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[QueueAnswer] = loop.create_future()
        gathered = self._gathered.setdefault(name, [])
        if not gathered:
            loop.call_soon(self._flush, name)
        gathered.append(_Request(operation, future))
        return await future

    def _flush(self, name: str) -> None:
        gathered = self._gathered.pop(name, [])
        while gathered:
            size = count = 0
            for request in gathered[:MAX_BATCH]:
                size += len(request.operation.packet.data) if isinstance(request.operation, Put) else 0
                if count and size > MAX_BATCH_BYTES:
                    break
                count += 1
            task = asyncio.create_task(self._send(name, gathered[:count]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            gathered = gathered[count:]

    async def put_all(self, name: str, packets: Sequence[Packet]) -> list[PutAnswer]:
        """As few requests as their size allows; the jobs of each are put together."""
        answers: list[PutAnswer] = []
        for batch in _batches(packets):
            operations = [Put(packet) for packet in batch]
            try:
                url = f"{_url(name)}/operations"
                headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
                answer = await self._call(
                    "POST", url, content=encode_operations(operations), headers=headers, params={"together": True}
                )
            except _Lost as lost:
                raise AnswerLost(name, str(lost)) from lost
            answers += cast(list[PutAnswer], decode_outcomes(answer.content, operations))
        return answers

    async def _send(self, name: str, batch: Sequence[_Request]) -> None:
        operations = [request.operation for request in batch]
        outcomes: Sequence[WireOutcome]
        try:
            headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
            url = f"{_url(name)}/operations"
            answer = await self._call("POST", url, content=encode_operations(operations), headers=headers)
            outcomes = decode_outcomes(answer.content, operations)
        except _Lost as lost:
            outcomes = [
                Unreachable(str(lost)) if isinstance(one, READS) else AnswerLost(name, str(lost)) for one in operations
            ]
        except EverlogError as error:
            if isinstance(error, QueueNotFound):
                self.forget(name)
            outcomes = [error] * len(operations)
        except BaseException as error:  # whatever it is: the callers wait for an answer
            if asks_to_end(error):
                raise
            logger.error("a request about the queue %s failed", name, exc_info=error)
            outcomes = [AnswerLost(name, repr(error))] * len(operations)
        for request, outcome in zip(batch, outcomes, strict=True):
            if request.future.done():
                continue
            if isinstance(outcome, EverlogError):
                request.future.set_exception(outcome)
            else:
                request.future.set_result(outcome)

    async def wait(self, name: str, listener: str, seconds: float) -> bool:
        """A long poll; a server that does not answer is no wake-up, and is not asked again at once."""
        wait = min(seconds, MAX_WAIT_S)
        parameters: dict[str, Any] = {"seconds": wait, "listener": listener}
        try:
            answer = await self._call("POST", f"{_url(name)}/wait", params=parameters, timeout=wait + TIMEOUT_S)
        except EverlogError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(min(seconds, RETRY_PAUSE_S))
            return False
        return _decoded(answer, _WaitBody).woken

    async def _call(self, method: str, url: str, **options: Any) -> httpx.Response:
        """A request; what the server refuses is raised as it would be there."""
        try:
            answer = await self._http.request(method, url, **options)
        except _NOT_SENT as error:
            raise Unreachable(f"the server at {self._http.base_url} does not answer: {error!r}") from error
        except httpx.TransportError as error:
            raise _Lost(f"the server at {self._http.base_url} did not answer to the end: {error!r}") from error
        if answer.is_error:
            raise refusal_of(answer)
        return answer

    def sibling(self) -> RemoteQueueStore:
        """Connections belong to an event loop."""
        http = httpx.AsyncClient(base_url=self._http.base_url, headers=self._http.headers, timeout=TIMEOUT_S)
        return RemoteQueueStore(http, self.clock, owns_client=True)

    def counted(self, name: str) -> Counter[str]:
        """The server counts."""
        return Counter()

    async def close(self) -> None:
        await super().close()
        if self._sending:
            await asyncio.gather(*self._sending, return_exceptions=True)
        if self._owns_client:
            await self._http.aclose()


def _batches(packets: Sequence[Packet]) -> Iterator[Sequence[Packet]]:
    first = size = 0
    for at, packet in enumerate(packets):
        size += len(packet.data) + len(packet.key)
        if at > first and (size > MAX_BATCH_BYTES or at - first == PUT_AT_ONCE):
            yield packets[first:at]
            first, size = at, len(packet.data) + len(packet.key)
    if packets:
        yield packets[first:]


class _Lost(Unreachable):
    """Sent, and not answered."""


class _DeclarationBody(msgspec.Struct):
    declaration: Declaration


class _NamesBody(msgspec.Struct):
    queues: list[str]


class _CountBody(msgspec.Struct):
    count: int


class _WaitBody(msgspec.Struct):
    woken: bool


def _decoded(answer: httpx.Response, kind: type[T]) -> T:
    """The body of an answer; a page that something between here and the server has put in its place is an error."""
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageFailed(f"{answer.url} gives no answer of an Everlog server: {error}") from error


def _url(name: str) -> str:
    return f"/queues/{quote(name, safe='')}"
