"""A node among others: its row in the table of nodes, what it knows of the others, and when its state changes.

Clocks are never compared: a node is dead for an observer that has seen the same beat for the length of a lease on its
own clock, or whose question at its address is refused. A node that could not renew its own lease in time starts over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress

import msgspec

from everlog.documents.nodes import SHARING, Node, NodeState, NodeTable
from everlog.documents.router import Router
from everlog.documents.workers import Workers
from everlog.errors import Busy, EverlogError
from everlog.runtime.clock import Clock
from everlog.runtime.lease import BEATS_PER_LEASE, LeaseWatch

log = logging.getLogger("everlog.documents")

TRANSITION_FACTOR = 0.1

AskNode = Callable[[Node], Awaitable[bool | None]]
"""Let a node look at the table now. True: it has; False: it is gone; None: unknown."""


async def _ask_no_node(node: Node) -> bool | None:
    return None


class Membership:
    """This node. `groups`: the tasks that must have ended before a key of theirs may move."""

    def __init__(
        self,
        table: NodeTable,
        address: str,
        groups: Collection[Workers],
        *,
        clock: Clock,
        lease_s: float,
        sync_interval_s: float,
        ask: AskNode = _ask_no_node,
    ) -> None:
        self._table = table
        self._groups = groups
        self._clock = clock
        self._lease_s = lease_s
        self._sync_interval_s = sync_interval_s
        self._ask = ask
        self._watch = LeaseWatch(lease_s)
        self._gone: dict[str, int] = {}  # id -> the beat at which it was found to be gone
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._beaten: float | None = None
        self._saved: Node | None = None
        self.routing = Router(Node(clock.new_id(), address, NodeState.ACTIVATING))

    @property
    def me(self) -> Node:
        return self.routing.me

    async def start(self) -> None:
        """Join; a node that is alone is active at once."""
        for group in self._groups:
            group.watchers.append(self._ended)
        await self.sync()
        self._task = asyncio.create_task(self._run(), name="everlog-documents-node")

    async def stop(self, patience_s: float) -> None:
        """Leave: end what was begun, let the next owners take over, and say so. Waits `patience_s` seconds at most."""
        try:
            async with asyncio.timeout(patience_s):
                await self.begin_to_leave()
                while not self.may_leave:
                    await self._wait_for_change()
        except TimeoutError:
            log.warning("this node leaves with tasks under way; other nodes go on after its lease")
        except EverlogError as error:
            log.warning("this node leaves, and cannot tell the others: %s", error)
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        with suppress(EverlogError):
            await self.leave()
        await self._table.close()

    async def begin_to_leave(self) -> None:
        """From now on, send on what comes."""
        await self._become(NodeState.DEACTIVATING)
        await self.look()  # a node that joined before this was saved may not know it; one that joins later does

    @property
    def may_leave(self) -> bool:
        """Whether all that was begun has ended, and the others know."""
        return not any(group.keys for group in self._groups) and not self.routing.unconfirmed

    async def leave(self) -> None:
        """The next owners may begin."""
        await self._become(NodeState.PASSIVE)
        await self._table.remove(self.me.id)
        await self._hurry_others(self.routing.others.values())

    def _ended(self, key: str) -> None:
        """A task has ended: another node may wait for just that."""
        if self._saved is not None and not self._saved.view:
            self._wake.set()
        if self.me.state is NodeState.DEACTIVATING:
            self._notify()

    async def _run(self) -> None:
        while not self._stopping:
            if self._in_transition:
                await asyncio.sleep(self._sync_interval_s * TRANSITION_FACTOR)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._sync_interval_s):
                        await self._wake.wait()
            self._wake.clear()
            try:
                await self.sync()
            except Exception as error:  # whatever it is: a node that does not beat is dead
                unexpected = not isinstance(error, EverlogError)
                log.warning("this node cannot look at the others: %s", error, exc_info=unexpected)

    @property
    def _in_transition(self) -> bool:
        members = [self.me, *self.routing.others.values()]
        return any(node.state is not NodeState.ACTIVE for node in members) or bool(self.routing.unconfirmed)

    async def sync(self) -> None:
        """Look; let the nodes that route differently look; look again."""
        await self.look()
        if self.routing.unconfirmed:
            await self._hurry_others(self.routing.unconfirmed)
            await self.look()

    async def look(self) -> None:
        """Read the table, route by what it says, say so, and change state if it is time.

        This is what others ask for: no node is asked from here, or two nodes would ask each other forever.
        """
        async with self._lock:
            if self.me.state is NodeState.PASSIVE:
                return
            self._start_over_if_late()
            if self._saved is None:
                await self._save()  # before the first look: of two that come together, one sees the other
            self._replace(Router(self.me, await self._alive()))
            if self.me.state is NodeState.ACTIVATING and not self.routing.unconfirmed:
                await self._save(NodeState.ACTIVE)
            await self._save_if_due()
        if self._in_transition:
            self._wake.set()

    def _start_over_if_late(self) -> None:
        """Others may have taken what was ours: come back as another node."""
        late = self._beaten is not None and self._clock.monotonic() - self._beaten > self._lease_s
        if late and self.me.state in SHARING:
            log.warning("this node was silent for longer than its lease: it joins again")
            self._begin_again()

    def _begin_again(self) -> None:
        fresh = Node(self._clock.new_id(), self.me.address, NodeState.ACTIVATING)
        self._saved = self._beaten = None
        self._replace(Router(fresh, self.routing.others.values()))

    async def _alive(self) -> list[Node]:
        """The other nodes, without those that are dead; the rows of those that were silent for a lease are removed."""
        rows = {node.id: node for node in await self._table.nodes()}
        if self._saved is not None and self.me.id not in rows:  # another node took us for dead
            if self.me.state in SHARING:
                self._begin_again()
            await self._save()
        now = self._clock.monotonic()
        alive = []
        for node in rows.values():
            if node.id == self.me.id:
                continue
            if not self._watch.look(node.id, node.beat, now):
                await self._table.remove(node.id)
            elif self._gone.get(node.id) != node.beat:
                alive.append(node)
        self._watch.keep(rows)
        self._gone = {name: beat for name, beat in self._gone.items() if name in rows}
        return alive

    def _replace(self, routing: Router) -> None:
        before, self.routing = self.routing, routing
        if before.view != routing.view or before.me != routing.me or before.unconfirmed != routing.unconfirmed:
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def _view(self) -> str:
        """What this node confirms: its routing, once it works on nothing that belongs to others."""
        keys = [key for group in self._groups for key in group.keys]
        return "" if self.routing.moved(keys) else self.routing.view

    async def _save_if_due(self) -> None:
        due = self._beaten is None or self._clock.monotonic() - self._beaten > self._lease_s / BEATS_PER_LEASE
        if due or self._saved is None or self._saved.view != self._view:
            await self._save()

    async def _save(self, state: NodeState | None = None) -> None:
        """Renew the lease, counted from before it was asked for."""
        began = self._clock.monotonic()
        mine = msgspec.structs.replace(
            self.me,
            state=state or self.me.state,
            beat=self.me.beat + 1,
            view=self._view,
            seen_ms=self._clock.now_ms(),
        )
        await self._table.save(mine)
        self._beaten, self._saved = began, mine
        self._replace(Router(mine, self.routing.others.values()))

    async def _become(self, state: NodeState) -> None:
        async with self._lock:
            await self._save(state)
            await self._save_if_due()  # the view is another one now
        await self._hurry_others(self.routing.others.values())

    async def _hurry_others(self, nodes: Collection[Node]) -> None:
        """Let them look now rather than at their next time. A node that is gone need not be waited for."""
        answers = await asyncio.gather(*[self._ask(node) for node in nodes])
        for node, answer in zip(nodes, answers, strict=True):
            if answer is False:
                self.suspect(node)

    def suspect(self, node: Node) -> None:
        """Its address no longer leads to it: it is dead unless its beat goes on."""
        self._gone[node.id] = self.routing.others.get(node.id, node).beat
        self._wake.set()

    async def left(self, node: Node) -> None:
        """Returns when a node is no longer among the others."""
        while node.id in self.routing.others:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        await self._changed.wait()

    @asynccontextmanager
    async def admit(self, group: Workers, key: str, timeout_s: float) -> AsyncIterator[Node | None]:
        """Where a task of this key runs: None means here, and the key counts as under way until the block ends.

        Waits while another node may still work on it, for at most `timeout_s`.
        """
        place = self.routing.place(key)
        if place == "wait":
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while (place := self.routing.place(key)) == "wait":
                        await self._wait_for_change()
        if place == "wait":
            raise Busy(f"{key} is moving to this server, and its last owner is not done with it: try again")
        if isinstance(place, Node):
            yield place
            return
        with group.admitted(key):
            yield None

    def owns(self, key: str) -> bool:
        """Whether background work on a key is this node's."""
        return self.me.state in SHARING and self.routing.owns(key)
