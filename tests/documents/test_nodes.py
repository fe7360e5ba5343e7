"""Nodes that share documents: the ring, routing, hand-over, and workers. Without servers, in all orders."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.documents.membership import Membership
from everlog.documents.nodes import Node, NodeState, NodeTable
from everlog.documents.router import HashRing, Router
from everlog.documents.workers import Workers
from everlog.errors import Busy
from tests.support import ManualClock

KEYS = [f"k{number}" for number in range(40)]
names = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6)


@given(names, st.text("xyz", min_size=1, max_size=3))
def test_a_new_node_takes_keys_and_moves_no_others(nodes: set[str], new: str) -> None:
    before, after = HashRing(nodes), HashRing({*nodes, new})
    for key in KEYS:
        assert after.owner(key) in (before.owner(key), new)


def test_shares_are_about_equal() -> None:
    counts = Counter(HashRing(["a", "b", "c"]).owner(str(number)) for number in range(3000))
    assert all(600 < count < 1500 for count in counts.values()), counts


def test_of_nodes_that_know_the_same_at_most_one_works_on_a_key() -> None:
    """All states of three nodes: a key is at one node at most, and what is sent on arrives there at once."""
    for states in itertools.product(NodeState, repeat=3):
        nodes = [Node(name, "", state) for name, state in zip("abc", states, strict=True)]
        routings = {node.id: Router(node, [other for other in nodes if other != node]) for node in nodes}
        for key in KEYS:
            places = {name: routing.place(key) for name, routing in routings.items()}
            sharing = [node for node in nodes if node.state in (NodeState.ACTIVATING, NodeState.ACTIVE)]
            if not sharing:
                assert set(places.values()) == {"here"}  # nobody takes work: the store decides
                continue
            owners = [name for name, place in places.items() if place in ("here", "wait")]
            assert len(owners) == 1
            assert {place.id for place in places.values() if isinstance(place, Node)} <= set(owners)
            if states == (NodeState.ACTIVE,) * 3:
                assert "wait" not in places.values()


class _Table(NodeTable):
    """Rows in memory; others get a chance to run between any two steps."""

    def __init__(self) -> None:
        self.rows: dict[str, Node] = {}

    async def nodes(self) -> list[Node]:
        await asyncio.sleep(0)
        return list(self.rows.values())

    async def save(self, node: Node) -> None:
        await asyncio.sleep(0)
        self.rows[node.id] = node

    async def remove(self, node_id: str) -> None:
        self.rows.pop(node_id, None)

    async def close(self) -> None: ...


def make(table: NodeTable, clock: Any, **options: Any) -> tuple[Membership, Workers]:
    group = Workers()
    return Membership(table, "", [group], clock=clock, **{"lease_s": 10.0, "sync_interval_s": 1.0, **options}), group


class _Cluster:
    """Nodes that join, work, and leave, one small step of somebody at a time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.table, self.clock = _Table(), ManualClock()
        self.nodes: list[tuple[Membership, Workers]] = []
        self.leaving: list[tuple[Membership, Workers]] = []
        self.running: dict[str, tuple[Membership, Any]] = {}  # key -> who works on it, and the block in which it does

    async def step(self) -> None:
        actions = {self.look: 6, self.begin: 4, self.end: 1, self.change: 1}
        await self.chance.choices(list(actions), list(actions.values()))[0]()
        self.clock.advance(0.1)
        for key, (worker, _) in self.running.items():
            for node, _group in self.nodes:  # where all are leaving, the store decides
                assert node is worker or node.routing.place(key) != "here", f"two nodes may work on {key}"

    async def look(self) -> None:
        some = [node for node, _ in (*self.nodes, *self.leaving) if self.chance.random() < 0.7]
        await asyncio.gather(*[node.look() for node in some])

    async def all_look(self) -> None:
        for node, _ in (*self.nodes, *self.leaving):
            await node.look()
        await self.let_go()

    async def change(self) -> None:
        if len(self.nodes) < 4 and self.chance.random() < 0.5:
            self.nodes.append(make(self.table, self.clock))
        elif len(self.nodes) > 1:
            self.leaving.append(self.nodes.pop(self.chance.randrange(len(self.nodes))))
            await self.leaving[-1][0].begin_to_leave()
        await self.let_go()

    async def let_go(self) -> None:
        for pair in list(self.leaving):
            if pair[0].may_leave:
                self.leaving.remove(pair)
                for node, _ in (*self.nodes, *self.leaving):
                    sent_to = {place.id for key in KEYS if isinstance(place := node.routing.place(key), Node)}
                    assert pair[0].me.id not in sent_to, "a node leaves to which another still sends"
                await pair[0].leave()

    async def begin(self) -> None:
        """A task arrives at some node."""
        if not self.nodes:
            return
        node, group = self.chance.choice(self.nodes)
        key = self.chance.choice(KEYS[:8])
        if node.routing.place(key) == "here" and key not in group.keys:
            block = node.admit(group, key, 0)
            assert await block.__aenter__() is None
            self.running[key] = (node, block)

    async def end(self) -> None:
        if self.running:
            _, block = self.running.pop(self.chance.choice(sorted(self.running)))
            await block.__aexit__(None, None, None)


@settings(max_examples=50)
@given(st.integers(0, 2**32))
@example(164)  # these four end with five nodes or more that are leaving
@example(486)
@example(1552)
@example(2010)
@pytest.mark.case("hyperstorage", 69, 70)
def test_no_two_nodes_work_on_a_key_while_nodes_come_and_go(seed: int) -> None:
    """Any order of joining, working, looking and leaving, without failures; at the end all agree and share the keys.

    A node that has left changes how the others route, and they confirm that anew: so of several that are leaving, each
    round of looks may let only one go, but never none.
    """

    async def run() -> None:
        cluster = _Cluster(seed)
        for _ in range(100):
            await cluster.step()
        while cluster.running:
            await cluster.end()
        await cluster.all_look()  # now all have rows, and know of each other
        while leaving := len(cluster.leaving):
            await cluster.all_look()
            assert len(cluster.leaving) < leaving
        for _ in range(2):  # to say how they route now, and to see that all have said so
            await cluster.all_look()
        steady = [node for node, _ in cluster.nodes]
        assert {node.me.state for node in steady} <= {NodeState.ACTIVE}
        for key in KEYS if steady else ():
            assert [node.routing.place(key) for node in steady].count("here") == 1

    asyncio.run(run())


async def test_a_joiner_waits_for_tasks_of_keys_that_move(clock: ManualClock) -> None:
    table = _Table()
    old, tasks = make(table, clock)
    await old.look()
    assert old.me.state is NodeState.ACTIVE  # alone: at once
    new, group = make(table, clock)
    key = next(key for key in KEYS if Router(new.me, [old.me]).place(key) == "wait")
    async with old.admit(tasks, key, 0) as place:
        assert place is None
        for node in (new, old, new, old):
            await node.look()
        assert new.me.state is NodeState.ACTIVATING
        assert isinstance(old.routing.place(key), Node)
        with pytest.raises(Busy):
            async with new.admit(group, key, 0.01):
                pass
    await old.look()
    waiting = asyncio.create_task(_enter(new, group, key))
    await new.look()
    assert new.me.state is NodeState.ACTIVE
    assert await waiting is None


async def test_a_node_stays_until_one_that_has_just_joined_knows_that_it_leaves(clock: ManualClock) -> None:
    table = _Table()
    old, _ = make(table, clock)
    await old.look()
    new, _ = make(table, clock)
    await new.look()
    assert any(isinstance(new.routing.place(key), Node) for key in KEYS)  # it sends to the old one
    await old.begin_to_leave()
    assert not old.may_leave
    await new.look()
    assert not any(isinstance(new.routing.place(key), Node) for key in KEYS)
    await old.look()
    assert old.may_leave


async def test_a_node_without_tasks_may_leave_as_soon_as_the_others_have_answered(clock: ManualClock) -> None:
    """It need not wait for its next look at the table."""
    table, nodes = _Table(), dict[str, Membership]()

    async def ask(node: Node) -> bool | None:
        await nodes[node.id].look()
        return True

    for _ in range(3):
        node, _workers = make(table, clock, ask=ask)
        nodes[node.me.id] = node
        await node.sync()
    assert {node.me.state for node in nodes.values()} == {NodeState.ACTIVE}
    await node.begin_to_leave()
    assert node.may_leave


async def _enter(node: Membership, group: Workers, key: str) -> Node | None:
    async with node.admit(group, key, 5.0) as place:
        return place


async def test_a_silent_node_is_dead_after_its_lease_and_comes_back_as_another(clock: ManualClock) -> None:
    table = _Table()
    one, _ = make(table, clock)
    two, _ = make(table, clock)
    for node in (one, two, one, two, one):
        await node.look()
    before = two.me.id
    assert set(one.routing.others) == {before}
    clock.advance(6)
    await one.look()
    assert set(one.routing.others) == {before}
    clock.advance(6)
    await one.look()
    assert not one.routing.others
    assert list(table.rows) == [one.me.id]
    await two.look()
    assert two.me.id != before
    assert two.me.state is NodeState.ACTIVATING
    for node in (one, two):
        await node.look()
    assert two.me.state is NodeState.ACTIVE


async def test_a_node_whose_address_refuses_need_not_be_waited_for(clock: ManualClock) -> None:
    """Unless its beat goes on: then only the way to it is wrong."""
    table = _Table()
    dead = Node("dead", "http://dead", NodeState.ACTIVE, 7, "old")
    await table.save(dead)

    async def refused(node: Node) -> bool | None:
        return False

    new, _ = make(table, clock, ask=refused)
    await new.sync()
    assert new.me.state is NodeState.ACTIVE
    assert not new.routing.others
    await table.save(msgspec.structs.replace(dead, beat=8))
    await new.look()
    assert set(new.routing.others) == {"dead"}


@pytest.mark.case("hyperstorage", 69)
async def test_one_worker_per_key_and_so_many_in_all() -> None:
    """Two tasks for each of two keys, two workers: the first ones run together, the second ones after them."""
    workers, running, done = Workers(max_tasks=2), set[str](), list[tuple[str, int]]()
    together = asyncio.Event()

    async def task(key: str, number: int) -> None:
        await workers.take(key)
        assert key not in running
        assert len(running) < 2
        running.add(key)
        if running == {"a", "b"}:
            together.set()
        await together.wait()
        await asyncio.sleep(0)
        running.remove(key)
        done.append((key, number))
        workers.end(key)

    async with asyncio.timeout(60):
        await asyncio.gather(*[task(key, number) for number in (1, 2) for key in ("a", "b")])
    assert {done[0], done[1]} == {("a", 1), ("b", 1)}
    assert [number for key, number in done if key == "a"] == [1, 2]
    assert not workers.keys


async def test_a_full_waiting_room_refuses_and_a_cancelled_wait_leaves_no_trace() -> None:
    workers = Workers(max_tasks=1, max_waiting=1)
    await workers.take("a")
    second = asyncio.create_task(workers.take("b"))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await workers.take("c")
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert list(workers.keys) == ["a"]
    workers.end("a")
    await workers.take("b")
    workers.end("b")
    assert not workers.keys
