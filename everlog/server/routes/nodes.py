"""Several servers on the same documents: a write goes to the node that its document belongs to.

That saves contention, and nothing rests on it: whatever goes wrong on the way, the write is decided here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
from litestar import Litestar, Response, get
from litestar.openapi.spec import OpenAPIType, Schema

from everlog.api import Everlog
from everlog.config import ServerConfig
from everlog.documents.membership import Membership
from everlog.documents.nodes import Node
from everlog.documents.paths import PARTITIONS
from everlog.documents.workers import Workers
from everlog.errors import DocumentNotFound, InvalidDocument, WriteUnfinished
from everlog.server.answers import json_answer
from everlog.server.errors import JSON
from everlog.server.requests import AnyRequest
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import OBJECT, TEXT, answer, operation

FORWARDED = "everlog-forwarded"
NODE = "Everlog-Node"
MAX_HOPS = 2
ASK_TIMEOUT_S = 1.0
GRACE_S = 1.0  # an answer may be under way when its node has left
KEEP_ALIVE_S = 2.0  # shorter than a server keeps an idle connection: none is used while it is being closed
NODES = "/hyper-storage/nodes"
# Of this connection rather than of the request, or settled where the request came in.
_NOT_SENT_ON = frozenset(
    b"host connection keep-alive transfer-encoding te trailer upgrade expect content-length accept-encoding origin "
    b"sec-fetch-site sec-fetch-mode sec-fetch-dest everlog-forwarded".split()
)
_NOT_SENT_BACK = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})
# What a node answers before it looks at the request itself: that it does not know the caller, or is another node.
_NOT_TAKEN = (401, 403, 421)

Run = Callable[[], Awaitable[Response[Any]]]


class Nodes:
    """This server among others: its membership, and the way to them."""

    def __init__(self, log: Everlog, address: str) -> None:
        config = log.config.documents
        self._seconds = config.request_timeout_s
        self._patience = config.shutdown_timeout_s
        self._documents = log.documents
        limits = httpx.Limits(max_connections=1000, keepalive_expiry=KEEP_ALIVE_S)
        # The owner may keep a write for as long as another write may take, and then takes its own time.
        timeout = httpx.Timeout(2 * self._seconds, connect=ASK_TIMEOUT_S)
        trusted = _trusted(log.config.server)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, verify=trusted, trust_env=False)
        token = log.config.server.cluster_token
        self._own_name = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._log = log
        self._address = address
        self.membership: Membership | None = None

    async def start(self) -> None:
        parts, config = await self._documents.open(), self._log.config.documents
        self.membership = Membership(
            parts.store.node_table(),
            self._address,
            (self._documents.writers, self._documents.completers),
            clock=self._log.parts.clock,
            lease_s=config.node_lease_s,
            sync_interval_s=config.node_sync_interval_s,
            ask=self._ask,
        )
        await self.membership.start()
        shares = [str(partition) for partition in range(PARTITIONS)]
        parts.recovery.owns = lambda partition: self._owns(shares[partition])
        parts.completer.owns = self._owns

    def _owns(self, key: str) -> bool:
        return self.membership is None or self.membership.owns(key)

    async def stop(self) -> None:
        if self.membership is not None:
            await self.membership.stop(self._patience)
        await self._http.aclose()

    async def _ask(self, node: Node) -> bool | None:
        """Let a node look at the table. A node is gone if its address refuses, or leads to another one."""
        try:
            found = await self._http.get(f"{node.address}{NODES}", timeout=ASK_TIMEOUT_S, headers=self._own_name)
        except httpx.ConnectError:
            return False
        except httpx.TransportError:
            return None
        if found.status_code == 200:
            return bool(found.json().get("id") == node.id)
        return False if found.status_code == 404 else None

    async def routed(self, request: AnyRequest, group: Workers, uri: str, data: bytes, run: Run) -> Response[Any]:
        """Run a task where it belongs: here, or by the node that owns the document, whose answer this is."""
        membership = self.membership
        if membership is None:
            return await run()
        hops, target = _hops(request)
        if target is not None and target != membership.me.id:
            raise InvalidDocument("misdirected", "this request was meant for another node")
        async with membership.admit(group, uri, self._seconds) as node:
            found = None
            if node is not None and hops < MAX_HOPS:
                found = await self._forward(request, node, data, hops + 1)
            if found is None:
                found = await run()
                found.headers[NODE] = membership.me.id
        return found

    async def _forward(self, request: AnyRequest, node: Node, data: bytes, hops: int) -> Response[Any] | None:
        """The owner's answer; None if it surely did not take the request, or a second time does no harm."""
        scope = request.scope
        path = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _NOT_SENT_ON]
        headers.append((FORWARDED.encode(), f"{hops} {node.id}".encode()))
        url = f"{node.address}{path}" + (f"?{query}" if query else "")
        sending = self._http.request(scope["method"], url, headers=headers, content=data)
        try:
            found = await self._answer_of(node, sending)
        except (httpx.PoolTimeout, httpx.ConnectTimeout):
            return None
        except httpx.ConnectError:
            self._suspect(node)
            return None
        except httpx.TransportError as error:
            message = request.headers.get("hyperbus-message-id", request.headers.get("idempotency-key"))
            if message is not None:
                return None
            raise WriteUnfinished(
                f"the node at {node.address} did not answer ({type(error).__name__}): it may have taken the write. "
                "Look, and give writes a message id: then they can be repeated",
                message_id="",
            ) from error
        if found.status_code in _NOT_TAKEN:
            return None
        kept = {name: value for name, value in found.headers.items() if name.lower() not in _NOT_SENT_BACK}
        kind = kept.pop("content-type", JSON)
        return Response(found.content, status_code=found.status_code, media_type=kind, headers=kept)

    async def _answer_of(self, node: Node, sending: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        """Its answer; a node that is gone is not waited for."""
        assert self.membership is not None
        answering = asyncio.create_task(sending)
        leaving = asyncio.create_task(self.membership.left(node))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await asyncio.wait({answering}, timeout=GRACE_S)
            if answering.done():
                return answering.result()
        finally:
            leaving.cancel()
            answering.cancel()
        raise httpx.ReadTimeout("it is gone")

    def _suspect(self, node: Node) -> None:
        if self.membership is not None:
            self.membership.suspect(node)


def _hops(request: AnyRequest) -> tuple[int, str | None]:
    """How often a request was sent on, and to which node last."""
    count, _, target = request.headers.get(FORWARDED, "0").partition(" ")
    return (int(count) if count.isdecimal() and len(count) < 3 else MAX_HOPS), target or None


def nodes_of(request: AnyRequest) -> Nodes | None:
    found: Nodes | None = getattr(request.app.state, "nodes", None)
    return found


async def routed(request: AnyRequest, group: Workers, uri: str, data: bytes, run: Run) -> Response[Any]:
    """Run a task where it belongs; here, if there are no other nodes."""
    nodes = nodes_of(request)
    return await run() if nodes is None else await nodes.routed(request, group, uri, data, run)


def _trusted(config: ServerConfig) -> ssl.SSLContext:
    """Which certificates to trust: those of the system, and the one that this server shows."""
    context = ssl.create_default_context()
    if config.cert_file is not None:
        context.load_verify_locations(config.cert_file)
    return context


@asynccontextmanager
async def joined(app: Litestar, log: Everlog, address: str) -> AsyncIterator[None]:
    """The server is a node at this address; it must listen there already, and until it has left."""
    if not log.config.documents.routing:
        yield
        return
    reachable = log.config.documents.node_address or address
    app.state.nodes = nodes = Nodes(log, reachable)  # first: others may send something as soon as they see our row
    try:
        await nodes.start()
        yield
    finally:
        await nodes.stop()
        app.state.nodes = None


@get(
    NODES,
    operation_class=operation(
        answers={
            200: answer(
                "This node",
                Schema(
                    type=OpenAPIType.OBJECT,
                    properties={"id": TEXT, "state": TEXT, "view": TEXT, "nodes": OBJECT},
                    required=["id", "state", "view"],
                ),
                examples=examples.NODE,
            )
        },
    ),
)
async def get_node(request: AnyRequest) -> Response[bytes]:
    """Look at the table of nodes now, and say how this node routes: other nodes ask for it when they join or leave."""
    nodes = nodes_of(request)
    if nodes is None or nodes.membership is None:
        raise DocumentNotFound("not_found", "this server shares its documents with no others ([documents] routing)")
    await nodes.membership.look()
    me = nodes.membership.me
    return json_answer({"id": me.id, "state": me.state, "view": me.view})


NODE_ROUTES = [get_node]
