"""What every store of projections promises."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from everlog.core.resume_point import ResumePoint
from everlog.errors import InvalidOffset, OffsetConflict, OwnershipLost, UnknownProjection
from everlog.projections.offsets import Int32, Offset, Sequence, SerializedOffset
from everlog.projections.port import Desired, OffsetStore, ProjectionDeadLetter, Report
from everlog.projections.projection_id import ProjectionId
from everlog.projections.save_window import OffsetProgress
from everlog.runtime.lease import Lease

ID = ProjectionId("carts", "carts-0")
OTHER = ProjectionId("carts", "carts-1")
OFFSETS: list[Offset] = [
    "text",
    7,
    Int32(7),
    Sequence(7),
    uuid.UUID("49225740-2019-11ea-a752-ffae2393b6e4"),
    SerializedOffset(4, "cart", b"\x00\xff"),
    ResumePoint(uuid.UUID("49225740-2019-11ea-a752-ffae2393b6e4"), {"carts|p": 3}),
]


async def own(store: OffsetStore, projection: ProjectionId = ID, owner: str = "me") -> Lease:
    """Become the owner, after any other one."""
    seen = (await store.leases(projection.name)).get(projection.key)
    lease = await store.take(projection, owner, seen)
    assert lease is not None
    return lease


def letter(offset: str = "4", **facts: object) -> ProjectionDeadLetter:
    values: dict[str, object] = {
        "name": ID.name,
        "key": ID.key,
        "offset": offset,
        "manifest": "LNG",
        "cause": "ValueError: no",
        "attempts": 3,
        "payload": b'"jkl"',
        "created_ms": 1_700_000_000_000,
    }
    return ProjectionDeadLetter(**{**values, **facts})  # type: ignore[arg-type]


class OffsetStoreConformance:
    """Subclass it with a fixture `store`: an empty OffsetStore."""

    # Offsets

    async def test_nothing_is_stored_at_first(self, store: OffsetStore) -> None:
        assert await store.load(ID) is None
        assert await store.known() == []
        assert await store.leases(ID.name) == {}
        assert await store.desired(ID.name) == {}

    @pytest.mark.case("tags-and-projections", 60)
    @pytest.mark.parametrize("offset", OFFSETS, ids=lambda one: type(one).__name__)
    async def test_every_type_of_offset_comes_back(self, store: OffsetStore, offset: Offset) -> None:
        """What was saved is what is loaded, of the same type."""
        await store.save(await own(store), OffsetProgress(offset))
        found = await store.load(ID)
        assert found == offset
        assert type(found) is type(offset)

    @pytest.mark.case("tags-and-projections", 60)
    async def test_keys_have_offsets_of_their_own(self, store: OffsetStore) -> None:
        """Five keys in five partitions: each keeps its own offset, whatever happens to the others."""
        ids = [ProjectionId("carts", f"carts-{number}") for number in range(5)]
        assert [one.partition for one in ids] == [3, 4, 0, 1, 2]
        for number, one in enumerate(ids):
            await store.save(await own(store, one), OffsetProgress(number))
        await store.set_offset(ids[2], None)
        assert [await store.load(one) for one in ids] == [0, 1, None, 3, 4]
        assert await store.load(ProjectionId("others", "carts-0")) is None

    async def test_a_map_is_merged_entry_by_entry(self, store: OffsetStore) -> None:
        lease = await own(store)
        await store.save(lease, OffsetProgress({"t-0": 1, "t-1": 5}))
        await store.save(lease, OffsetProgress({"t-0": 2}))
        await store.save(lease, OffsetProgress({"t-2": 0}))
        assert await store.load(ID) == {"t-0": 2, "t-1": 5, "t-2": 0}
        (known,) = await store.known("carts")
        assert (known.key, known.offset) == ("carts-0", {"t-0": 2, "t-1": 5, "t-2": 0})

    async def test_parts_of_a_map_may_move_to_another_key(self, store: OffsetStore) -> None:
        """The source is divided anew: the reader of an entry goes on where another key left it."""
        await store.save(await own(store), OffsetProgress({"t-0": 1, "t-1": 5}))
        later = await own(store, OTHER)
        assert await store.load(OTHER) == {"t-0": 1, "t-1": 5}
        await store.save(later, OffsetProgress({"t-1": 6}))
        assert await store.load(ID) == {"t-0": 1, "t-1": 6}

    async def test_parts_that_are_claimed_are_saved_by_their_new_owner_only(self, store: OffsetStore) -> None:
        """The source is divided anew while the owners of before still run: they store nothing of what was taken."""
        old = await own(store)
        await store.claim(old, ["t-0", "t-1", "t-2"])
        await store.save(old, OffsetProgress({"t-0": 1, "t-1": 5}))
        new = await own(store, OTHER)
        await store.claim(new, ["t-1", "t-2"])
        await store.claim(new, ["t-1", "t-2"])
        for part in ("t-1", "t-2"):
            with pytest.raises(OwnershipLost):
                await store.save(old, OffsetProgress({part: 9}))
        with pytest.raises(OwnershipLost):
            await store.claim(old, ["t-0", "t-1"])
        await store.save(old, OffsetProgress({"t-0": 2}))
        await store.save(new, OffsetProgress({"t-1": 6, "t-2": 0}))
        assert await store.load(ID) == {"t-0": 2, "t-1": 6, "t-2": 0}
        known = {one.key: one.offset for one in await store.known("carts")}
        assert known == {ID.key: {"t-0": 2}, OTHER.key: {"t-1": 6, "t-2": 0}}
        back = await own(store)
        await store.claim(back, ["t-0", "t-1", "t-2"])
        with pytest.raises(OwnershipLost):
            await store.save(new, OffsetProgress({"t-1": 7}))
        await store.set_offset(ID, {"t-1": 3})
        assert await store.load(ID) == {"t-1": 3}

    async def test_what_belongs_to_parts_comes_along(self, store: OffsetStore) -> None:
        """A pause, a skip and dead letters: all of the parts that are claimed, and none of the others."""
        old = await own(store)
        await store.claim(old, ["t-0", "t-1"])
        await store.save(old, OffsetProgress({"t-0": 1, "t-1": 5}))
        await store.bury(old, [letter("t-0=1"), letter("t-1=4", payload=None), letter("t-1=5")])
        await store.pause(ID, True)
        for offset in ("t-1=6", "t-0=2", "t-1=7"):
            await store.skip(ID, offset)
        new = await own(store, OTHER)
        await store.claim(new, ["t-1"])
        found = [(one.key, one.offset) for one in await store.dead_letters("carts")]
        assert found == [(ID.key, "t-0=1"), (OTHER.key, "t-1=4"), (OTHER.key, "t-1=5")]
        wants = (await store.desired("carts"))[OTHER.key]
        assert (wants.paused, wants.skips) == (True, ("t-1=6", "t-1=7"))
        for one in (ID, OTHER):
            await store.pause(one, False)
        back = await own(store)
        await store.pause(ID, True)
        await store.claim(back, ["t-0", "t-1"])
        assert (await store.desired("carts"))[ID.key].paused, "it had a part itself, and was paused"
        again = await own(store, OTHER)
        await store.pause(ID, False)
        await store.pause(OTHER, True)
        await store.claim(again, ["t-0", "t-1"])
        wants = (await store.desired("carts"))[OTHER.key]
        assert not wants.paused, "what was wanted of a key that had nothing is of another time"
        assert {one.key for one in await store.dead_letters("carts")} == {OTHER.key}

    # Owners

    async def test_one_owner_at_a_time(self, store: OffsetStore) -> None:
        first = await store.take(ID, "a", None)
        assert first is not None
        assert await store.take(ID, "b", None) is None, "it is not as it was seen"
        second = await store.take(ID, "b", first)
        assert second is not None
        assert second.epoch > first.epoch
        assert await store.take(ID, "c", first) is None
        assert (await store.leases(ID.name))[ID.key] == second

    async def test_of_many_at_once_one_wins(self, store: OffsetStore) -> None:
        taken = await asyncio.gather(*(store.take(ID, f"i{number}", None) for number in range(8)))
        assert len([one for one in taken if one is not None]) == 1

    async def test_epochs_grow_over_all_keys_of_a_name(self, store: OffsetStore) -> None:
        epochs = [(await own(store, one)).epoch for one in (ID, OTHER, ID, OTHER)]
        assert sorted(set(epochs)) == epochs

    async def test_a_renewal_changes_the_beat(self, store: OffsetStore) -> None:
        lease = await own(store)
        renewed = await store.renew(lease, Report(state="running", handled=3))
        assert renewed is not None
        assert (renewed.epoch, renewed.owner) == (lease.epoch, "me")
        assert renewed.beat > lease.beat
        assert await store.take(ID, "b", lease) is None, "it lives"
        (known,) = await store.known()
        assert (known.report.state, known.report.handled, known.lease) == ("running", 3, renewed)

    async def test_a_lost_lease_cannot_be_renewed_or_released(self, store: OffsetStore) -> None:
        stale = await own(store, owner="a")
        current = await own(store, owner="b")
        assert await store.renew(stale, Report()) is None
        await store.release(stale, Report())
        assert (await store.leases(ID.name))[ID.key] == current

    async def test_a_released_key_is_free(self, store: OffsetStore) -> None:
        lease = await own(store)
        await store.release(lease, Report(state="stopped"))
        assert (await store.leases(ID.name))[ID.key].owner is None
        assert (await own(store, owner="b")).epoch > lease.epoch

    async def test_a_stale_owner_cannot_move_the_offset(self, store: OffsetStore) -> None:
        """It resumes after a pause: nothing that it writes counts, whatever it is."""
        stale = await own(store, owner="a")
        await store.save(stale, OffsetProgress(3))
        current = await own(store, owner="b")
        for _ in range(2):
            with pytest.raises(OwnershipLost):
                await store.save(stale, OffsetProgress(2, positions={("orders", 0): 2}))
            with pytest.raises(OwnershipLost):
                await store.bury(stale, [letter()])
            assert await store.load(ID) == 3
            await store.save(current, OffsetProgress(7))
            with pytest.raises(OwnershipLost):
                await store.save(stale, OffsetProgress(4))
            assert await store.load(ID) == 7
            await store.save(current, OffsetProgress(3))
        assert await store.dead_letters("carts") == []
        assert await store.positions("carts") == {}

    async def test_instances_are_counted(self, store: OffsetStore) -> None:
        await store.join("carts", "a")
        before = await store.join("carts", "b")
        after = await store.join("carts", "a")
        assert set(before) == set(after) == {"a", "b"}
        assert after["a"] != before["a"]
        assert after["b"] == before["b"]
        await store.leave("carts", "a")
        assert set(await store.join("carts", "b")) == {"b"}

    # Commands

    async def test_a_set_offset_fences_the_owner(self, store: OffsetStore) -> None:
        """It loses its epoch, not its lease: the next renewal tells it the new one."""
        lease = await own(store)
        await store.save(lease, OffsetProgress(6, positions={("orders", 0): 6}))
        await store.set_offset(ID, 3)
        assert await store.load(ID) == 3
        assert await store.positions("carts") == {}
        with pytest.raises(OwnershipLost):
            await store.save(lease, OffsetProgress(7))
        renewed = await store.renew(lease, Report())
        assert renewed is not None
        assert renewed.epoch > lease.epoch
        await store.save(renewed, OffsetProgress(4))
        assert await store.load(ID) == 4

    async def test_compare_and_set(self, store: OffsetStore) -> None:
        await store.save(await own(store), OffsetProgress(6))
        with pytest.raises(OffsetConflict) as conflict:
            await store.set_offset(ID, 3, expected=5)
        assert (conflict.value.expected, conflict.value.actual) == (5, 6)
        with pytest.raises(OffsetConflict):
            await store.set_offset(ID, 3, expected="6")
        with pytest.raises(OffsetConflict):
            await store.set_offset(ID, 3, expected=None)
        await store.set_offset(ID, 3, expected=6)
        await store.set_offset(ID, None, expected=3)
        await store.set_offset(ID, 9, expected=None)
        assert await store.load(ID) == 9

    async def test_offsets_set_one_after_the_other_are_all_seen(self, store: OffsetStore) -> None:
        await store.save(await own(store), OffsetProgress(2))
        seen = []
        for offset in (3, 5, 7):
            seen.append(await store.load(ID))
            await store.set_offset(ID, offset)
        assert [*seen, await store.load(ID)] == [2, 3, 5, 7]

    async def test_commands_act_on_the_whole_map(self, store: OffsetStore) -> None:
        await store.save(await own(store), OffsetProgress({"t-0": 1, "t-1": 5}))
        await store.set_offset(ID, {"t-1": 2}, expected={"t-0": 1, "t-1": 5})
        assert await store.load(ID) == {"t-1": 2}
        with pytest.raises(InvalidOffset):
            await store.set_offset(ID, 3)
        await store.set_offset(ID, None)
        assert await store.load(ID) is None

    async def test_commands_for_unknown_projections_are_refused(self, store: OffsetStore) -> None:
        await own(store)
        for call in (
            store.set_offset(OTHER, 3),
            store.set_offset(OTHER, None),
            store.pause(OTHER, True),
            store.skip(OTHER, "3"),
        ):
            with pytest.raises(UnknownProjection):
                await call

    async def test_what_is_wanted_is_kept(self, store: OffsetStore) -> None:
        await own(store)
        await own(store, OTHER)
        paused = await store.pause(ID, True)
        assert paused == Desired(paused=True, version=1)
        skipping = await store.skip(ID, "4")
        assert skipping == Desired(paused=True, skips=("4",), version=2)
        assert await store.desired("carts") == {"carts-0": skipping}
        await store.pause(ID, False)
        await store.skip(ID, '"5"')
        await store.skip(ID, "4")
        assert (await store.desired("carts"))["carts-0"].skips == ("4", '"5"'), "beside each other"
        await store.end_skips(ID, ["4", "6"])
        assert await store.desired("carts") == {"carts-0": Desired(skips=('"5"',), version=6)}
        await store.end_skips(ID, ['"5"'])
        assert await store.desired("carts") == {"carts-0": Desired(version=7)}

    # Positions

    async def test_positions_are_saved_with_the_offset(self, store: OffsetStore) -> None:
        lease = await own(store)
        await store.save(lease, OffsetProgress(1, positions={("orders", 0): 4, ("orders", 1): 2}))
        await store.save(lease, OffsetProgress(None, positions={("orders", 0): 9}))
        assert await store.positions("carts") == {"carts-0": {("orders", 0): 9, ("orders", 1): 2}}
        assert await store.load(ID) == 1

    # Dead letters

    async def test_dead_letters_are_kept_in_order_and_once(self, store: OffsetStore) -> None:
        lease = await own(store)
        await store.bury(lease, [letter("10"), letter("9", payload=None)])
        await store.bury(lease, [letter("10", attempts=5)])
        found = await store.dead_letters("carts")
        assert [(one.offset, one.attempts, one.payload) for one in found] == [("10", 5, b'"jkl"'), ("9", 3, None)]
        assert await store.dead_letters("carts", "carts-1") == []
        assert len(await store.dead_letters("carts", limit=1)) == 1
        assert (await store.known())[0].dead_letters == 2

    async def test_dead_letters_are_replayed(self, store: OffsetStore) -> None:
        lease = await own(store)
        await store.bury(lease, [letter("4"), letter("5"), letter("6", payload=None)])
        before = (await store.desired("carts")).get(ID.key, Desired()).version
        assert await store.request_replay(ID) == 2, "what was not written down cannot be"
        assert (await store.desired("carts"))[ID.key].version > before, "the owner looks"
        first, second = await store.dead_letters("carts", "carts-0", requested=True)
        await store.answer_replay(lease, first, None)
        await store.answer_replay(lease, second, "still not")
        assert [(one.offset, one.cause, one.attempts, one.requested) for one in await store.dead_letters("carts")] == [
            ("5", "still not", 4, False),
            ("6", "ValueError: no", 3, False),
        ]
        assert await store.request_replay(ID, "5") == 1
        assert await store.request_replay(ID, "77") == 0
        assert await store.drop_letters(ID, "6") == 1
        assert await store.drop_letters(ID) == 1
        assert await store.dead_letters("carts") == []
