"""One pool of connections per event loop and cluster, with a driver that only counts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("acsylla")

from everlog.cassandra import pool as pools
from everlog.cassandra.connection import DriverConnection
from everlog.cassandra.session import Session, connect
from everlog.config import CASSANDRA_PASSWORD_VARIABLE, CassandraConfig
from everlog.errors import AccessDenied, Unreachable

CONFIG = CassandraConfig(contact_points=("a:9042", "b:9042"))


class Prepared:
    def __init__(self, cql: str) -> None:
        self.cql = cql

    def bind(self, values: list[Any], **_: Any) -> object:
        return self


class Connected(DriverConnection):
    """A connection that knows whether it is open; as the driver does, it refuses what comes too late."""

    async def close(self) -> None:
        self.session.open = False


class FakeSession:
    def __init__(self) -> None:
        self.open = True
        self.prepared: list[str] = []

    async def create_prepared(self, cql: str) -> Prepared:
        assert self.open
        self.prepared.append(cql)
        return Prepared(cql)

    async def execute(self, statement: Any, *, native_types: bool) -> list[Any]:
        assert self.open
        return []


class Driver:
    """Connects after `pause`; fails while there are `failures`."""

    def __init__(self) -> None:
        self.made: list[FakeSession] = []
        self.attempts = 0
        self.pause = 0.01
        self.failures: list[Exception] = []

    @property
    def open(self) -> int:
        return sum(one.open for one in self.made)

    async def connect(self, config: CassandraConfig) -> DriverConnection:
        self.attempts += 1
        await asyncio.sleep(self.pause)
        if self.failures:
            raise self.failures.pop(0)
        self.made.append(FakeSession())
        return Connected(None, self.made[-1])


@pytest.fixture
def driver(monkeypatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(pools, "open_connection", driver.connect)
    yield driver
    assert driver.open == 0
    driver.made.clear()
    gc.collect()
    assert len(pools._pools) == 0


async def close_all(*sessions: Session) -> None:
    for session in sessions:
        await session.close()


async def test_equal_settings_share_one_connection(driver) -> None:
    """What only statements need, the keyspace first of all, does not part users."""
    others = {"keyspace": "akka", "create_schema": False, "max_retries": 1, "reconnect_on_init": True}
    other = msgspec.structs.replace(CONFIG, contact_points=list(CONFIG.contact_points), **others)
    first, second = await connect(CONFIG), await connect(other)
    assert (driver.attempts, first._raw is second._raw, first._turns is second._turns) == (1, True, True)
    assert (first.config.keyspace, second.config.keyspace) == ("everlog", "akka")
    await first.close()
    assert driver.open == 1
    await second.close()
    assert driver.open == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"contact_points": ("b:9042",)},
        {"username": "me"},
        {"local_datacenter": "dc1"},
        {"consistency": "ONE"},
        {"request_timeout_s": 1.0},
        {"max_requests": 7},
        {"tls": True, "ca_file": "ca.pem"},
    ],
)
async def test_settings_that_the_driver_gets_part_users(driver, changes) -> None:
    sessions = [await connect(CONFIG), await connect(msgspec.structs.replace(CONFIG, **changes))]
    assert driver.attempts == 2
    await close_all(*sessions)


async def test_the_password_of_the_environment_counts_as_one_of_the_file(driver, monkeypatch) -> None:
    named = msgspec.structs.replace(CONFIG, username="me")
    monkeypatch.setenv(CASSANDRA_PASSWORD_VARIABLE, "old")
    sessions = [await connect(named), await connect(msgspec.structs.replace(named, password="old"))]
    assert driver.attempts == 1
    monkeypatch.setenv(CASSANDRA_PASSWORD_VARIABLE, "new")
    sessions.append(await connect(named))
    assert driver.attempts == 2
    await close_all(*sessions)


async def test_openers_at_once_share_one_attempt(driver) -> None:
    sessions = await asyncio.gather(*(connect(CONFIG) for _ in range(6)))
    assert (driver.attempts, driver.open) == (1, 1)
    await close_all(*sessions)


async def test_openers_at_once_share_one_failure_and_leave_nothing(driver) -> None:
    driver.failures = [Unreachable("no node")]
    found = await asyncio.gather(*(connect(CONFIG) for _ in range(6)), return_exceptions=True)
    assert [type(one) for one in found] == [Unreachable] * 6
    assert (driver.attempts, len(pools._pools)) == (1, 0)
    await (await connect(CONFIG)).close()
    assert driver.attempts == 2


async def test_only_those_who_want_to_wait_for_a_node_do(driver, monkeypatch) -> None:
    monkeypatch.setattr("everlog.cassandra.session.MIN_RECONNECT_S", 0.01)
    driver.failures = [Unreachable("no node"), Unreachable("no node"), AccessDenied("who?")]
    patient = msgspec.structs.replace(CONFIG, reconnect_on_init=True)
    found = await asyncio.gather(connect(CONFIG), connect(patient), return_exceptions=True)
    assert [type(one) for one in found] == [Unreachable, AccessDenied]
    assert driver.attempts == 3


async def test_an_opener_that_gives_up_does_not_end_the_attempt_of_others(driver) -> None:
    driver.pause = 0.05
    first, second = asyncio.create_task(connect(CONFIG)), asyncio.create_task(connect(CONFIG))
    await asyncio.sleep(0.01)
    first.cancel()
    session = await second
    assert (first.cancelled(), driver.attempts, driver.open) == (True, 1, 1)
    await session.close()


async def test_an_attempt_that_no_opener_waits_for_ends(driver) -> None:
    driver.pause = 3600.0
    openers = [asyncio.create_task(connect(CONFIG)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for opener in openers:
        opener.cancel()
    await asyncio.gather(*openers, return_exceptions=True)
    assert len(pools._pools) == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_pool_that_is_being_closed_is_not_handed_out(driver, monkeypatch) -> None:
    async def close(connection: Connected) -> None:
        await asyncio.sleep(0.05)
        connection.session.open = False

    monkeypatch.setattr(Connected, "close", close)
    closing = asyncio.create_task((await connect(CONFIG)).close())
    await asyncio.sleep(0.01)
    session = await connect(CONFIG)
    await closing
    assert (driver.attempts, driver.open) == (2, 1)
    assert await session.fetch("SELECT 1") == []
    await session.close()


async def test_a_closed_session_runs_nothing_and_counts_once(driver) -> None:
    first, second = await connect(CONFIG), await connect(CONFIG)
    await close_all(first, first)
    with pytest.raises(RuntimeError, match="closed"):
        await first.fetch("SELECT 1")
    assert await second.fetch("SELECT 1") == []
    await second.close()


async def test_statements_are_prepared_once_and_traced_for_their_user(driver) -> None:
    seen: dict[str, list[str]] = {"first": [], "second": []}
    first = await connect(CONFIG, lambda text, _: seen["first"].append(text))
    second = await connect(CONFIG, lambda text, _: seen["second"].append(text))
    third = await connect(CONFIG)
    for session in (first, second, third):
        await session.fetch("SELECT 1")
    assert driver.made[0].prepared == ["SELECT 1"]
    assert seen == {"first": ["PREPARE SELECT 1", "SELECT 1"], "second": ["SELECT 1"]}
    await close_all(first, second, third)


async def test_requests_of_all_users_count_together(driver, monkeypatch) -> None:
    running, most = 0, 0

    async def execute(self: FakeSession, statement: Any, *, native_types: bool) -> list[Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return []

    monkeypatch.setattr(FakeSession, "execute", execute)
    sessions = [await connect(msgspec.structs.replace(CONFIG, max_requests=3, keyspace=name)) for name in "abc"]
    await asyncio.gather(*(session.fetch("SELECT 1") for session in sessions for _ in range(10)))
    assert most == 3
    await close_all(*sessions)


def test_every_event_loop_has_its_own(driver) -> None:
    """Also if one before it ended without closing: of that, nothing is left."""

    async def forget() -> None:
        session = await connect(CONFIG)
        assert await session.fetch("SELECT 1") == []

    async def use() -> None:
        session = await connect(CONFIG)
        assert await session.fetch("SELECT 1") == []
        await session.close()

    asyncio.run(forget())
    gc.collect()
    assert len(pools._pools) == 0
    driver.made[0].open = False
    for _ in range(3):
        asyncio.run(use())
    assert driver.attempts == 4
