"""Taking projections over from Pekko Projection and giving them back, on tables and rows as it makes them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from everlog.cassandra.session import Session
from everlog.config import CassandraConfig
from everlog.core.resume_point import ResumePoint
from everlog.errors import StorageFailed
from everlog.projections.cassandra.offset_store import CassandraOffsetStore
from everlog.projections.offsets import Sequence, decode
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.runner import Runner
from everlog.projections.save_window import OffsetProgress
from everlog.projections.strategies import at_least_once
from everlog.testing.projection_kit import ListProvider
from everlog.testing.projections import own
from tests.fixtures.keyspaces import own_keyspace

# What Pekko Projection Cassandra executes, from its CassandraOffsetStore; only the keyspace is left open.
CREATE = (
    "CREATE KEYSPACE IF NOT EXISTS {ks} WITH REPLICATION = { 'class' : 'SimpleStrategy','replication_factor':1 }",
    "CREATE TABLE IF NOT EXISTS {ks}.offset_store ( projection_name text, partition int, projection_key text, "
    "offset text, manifest text, last_updated timestamp, PRIMARY KEY ((projection_name, partition), projection_key))",
    "CREATE TABLE IF NOT EXISTS {ks}.projection_management ( projection_name text, partition int, projection_key text, "
    "paused boolean, last_updated timestamp, PRIMARY KEY ((projection_name, partition), projection_key))",
)
SAVE = (
    "INSERT INTO {ks}.offset_store (projection_name, partition, projection_key, offset, manifest, last_updated) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
PAUSE = (
    "INSERT INTO {ks}.projection_management (projection_name, partition, projection_key, paused, last_updated) "
    "VALUES (?, ?, ?, ?, ?)"
)
READ = (
    "SELECT projection_key, offset, manifest FROM {ks}.offset_store "
    "WHERE projection_name = ? AND partition = ? AND projection_key = ?"
)
PARTITIONS = {"carts-0": 3, "carts-1": 4, "carts-2": 0, "carts-3": 1, "carts-4": 2}


class Pekko:
    """Does to the tables what Pekko Projection does."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _cql(self, text: str) -> str:
        return text.replace("{ks}", self._session.config.keyspace)

    async def create_tables(self) -> None:
        for statement in CREATE:
            await self._session.change_schema(self._cql(statement))

    async def save(self, key: str, offset: str, manifest: str = "SEQ", *, ahead_s: int | None = None) -> None:
        """With `ahead_s`, by a node whose clock is ahead."""
        using = "" if ahead_s is None else f" USING TIMESTAMP {(time.time_ns() // 1000) + ahead_s * 1_000_000}"
        place = ("carts", PARTITIONS[key], key)
        await self._session.write(self._cql(SAVE) + using, *place, offset, manifest, datetime.now(UTC))

    async def pause(self, key: str, paused: bool) -> None:
        await self._session.write(self._cql(PAUSE), "carts", PARTITIONS[key], key, paused, datetime.now(UTC))

    async def read(self, key: str) -> Any:
        rows = await self._session.fetch(self._cql(READ), "carts", PARTITIONS[key], key)
        return decode(rows[0][1], rows[0][2]) if rows else None


pytestmark = pytest.mark.cluster


@pytest.fixture
async def cassandra(shared_config) -> CassandraConfig:
    return msgspec.structs.replace(shared_config().cassandra, keyspace=f"t{secrets.token_hex(5)}")


@pytest.fixture
async def pekko(cassandra) -> AsyncIterator[Pekko]:
    async with own_keyspace(cassandra) as session:
        found = Pekko(session)
        await found.create_tables()
        yield found


def identity(key: str) -> ProjectionId:
    return ProjectionId("carts", key)


async def test_its_tables_and_rows_are_taken_over_key_by_key_and_given_back(cassandra, pekko):
    """Columns are added, and every key has the offset that was written last, by either of them, in any order."""
    for number, key in enumerate(PARTITIONS):
        await pekko.save(key, str(10 + number))
    await pekko.pause("carts-1", True)
    careful = msgspec.structs.replace(cassandra, create_schema=False)
    with pytest.raises(StorageFailed, match="not ready for the projections"):
        await CassandraOffsetStore.open(careful)
    store = await CassandraOffsetStore.open(cassandra)
    try:
        known = {one.key: (one.offset, one.desired.paused) for one in await store.known("carts")}
        assert known == {key: (10 + number, key == "carts-1") for number, key in enumerate(PARTITIONS)}

        await one_key_does_not_hide_the_others(store, pekko)
        await back_and_forth(store, pekko)
        await a_clock_that_is_ahead(store, pekko)
        await what_only_everlog_knows(store, pekko)
        assert (await store.desired("carts"))["carts-1"].paused
        await store.pause(identity("carts-1"), False)
        await pekko.pause("carts-1", True)
        assert (await store.desired("carts"))["carts-1"].paused
    finally:
        await store.close()
    await (await CassandraOffsetStore.open(careful)).close()
    await pekko.create_tables()


async def one_key_does_not_hide_the_others(store: CassandraOffsetStore, pekko: Pekko) -> None:
    lease = await own(store, identity("carts-0"))
    assert await store.load(identity("carts-0")) == 10
    await store.save(lease, OffsetProgress(20))
    assert [await store.load(identity(key)) for key in PARTITIONS] == [20, 11, 12, 13, 14]
    await own(store, identity("carts-2"))
    assert [one.offset for one in await store.known("carts")] == [20, 11, 12, 13, 14]


async def back_and_forth(store: CassandraOffsetStore, pekko: Pekko) -> None:
    """Each goes on where the other one stopped; also if that was set back on purpose."""
    assert await pekko.read("carts-0") == 20
    for offset in (25, 7):
        await pekko.save("carts-0", str(offset))
        assert [one.offset for one in await store.known("carts") if one.key == "carts-0"] == [offset]
        lease = await own(store, identity("carts-0"), owner=f"after {offset}")
        assert await store.load(identity("carts-0")) == offset, "the fence does not hide it"
        await store.save(lease, OffsetProgress(None, positions={("orders", 0): 5}))
        assert await store.load(identity("carts-0")) == offset
        await store.save(lease, OffsetProgress(offset + 1))
        assert await pekko.read("carts-0") == await store.load(identity("carts-0")) == offset + 1
    await pekko.save("carts-0", "30")
    await store.set_offset(identity("carts-0"), 3, expected=Sequence(30))
    assert await pekko.read("carts-0") == await store.load(identity("carts-0")) == 3
    await store.set_offset(identity("carts-0"), None)
    assert await pekko.read("carts-0") is await store.load(identity("carts-0")) is None
    await pekko.save("carts-0", "4")
    assert await store.load(identity("carts-0")) == 4


async def a_clock_that_is_ahead(store: CassandraOffsetStore, pekko: Pekko) -> None:
    """Whoever takes over from a node with such a clock is not overruled by what that one wrote."""
    await pekko.save("carts-3", "40", ahead_s=600)
    lease = await own(store, identity("carts-3"), owner="slow")
    assert await store.load(identity("carts-3")) == 40
    await store.save(lease, OffsetProgress(41))
    assert await store.load(identity("carts-3")) == await pekko.read("carts-3") == 41


async def what_only_everlog_knows(store: CassandraOffsetStore, pekko: Pekko) -> None:
    """Which journals are ahead of a UUID: Pekko gets the UUID, behind which some events come again."""
    after = "a4698000-8f19-11e5-a080-808080808080"
    lease = await own(store, identity("carts-4"))
    await store.save(lease, OffsetProgress(ResumePoint.parse(f'{{"after":"{after}","last":{{"p":3}}}}')))
    found = await store.load(identity("carts-4"))
    assert isinstance(found, ResumePoint)
    assert (str(found.after), found.last) == (after, {"p": 3})
    assert str(await pekko.read("carts-4")) == after
    await pekko.save("carts-4", after, "TBU")
    assert str(await store.load(identity("carts-4"))) == after


async def test_keys_of_a_running_projection_go_on_where_each_was(cassandra, pekko):
    """Three keys, of which two were Pekko's: nothing is handled again, nothing is left out."""
    await pekko.save("carts-0", "4", "LNG")
    await pekko.save("carts-1", "2", "LNG")
    seen: list[tuple[str, int]] = []

    async def take(envelope: tuple[str, int]) -> None:
        seen.append(envelope)

    def provider(key: str) -> Any:
        envelopes = [(key, number) for number in range(1, 6)]
        done = lambda stored, one: one[1] <= stored  # noqa: E731
        return ListProvider(envelopes, lambda one: one[1], completes=True, start_from=done)

    projection = Projection(
        "carts",
        source={key: provider(key) for key in ("carts-0", "carts-1", "carts-2")},
        handler=take,
        strategy=at_least_once(save_every=1),
    )
    store = await CassandraOffsetStore.open(cassandra)
    try:
        for _ in range(2):
            async with Runner([projection], store=store) as runner:
                await runner.owns("carts", 3)
                await runner.ended()
        assert sorted(seen) == [
            ("carts-0", 5),
            *(("carts-1", number) for number in (3, 4, 5)),
            *(("carts-2", number) for number in range(1, 6)),
        ]
        assert [await pekko.read(f"carts-{number}") for number in range(3)] == [5, 5, 5]
    finally:
        await store.close()
