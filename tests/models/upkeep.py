"""What `everlog expire` does to tables: it looks up what expires, and drops purge markers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import date

from everlog.core.duration import DAY_MS, LAST_MS
from everlog.core.head import Head, Topic
from everlog.store.cassandra.expiry import ExpiryHints, Hint
from everlog.store.cassandra.heads import may_drop
from tests.models.scheduler import Step, run_alone
from tests.models.world import TOPIC, World

FOR_EVER = 2**60


class ExpiryDouble(ExpiryHints):
    """The real look-up, over tables each statement of which is a step."""

    def __init__(self, world: World) -> None:
        self.tables = world.tables

    async def write(self, topic: Topic, partition: int, hints: Sequence[Hint]) -> dict[str, Exception]:
        for hint in hints:
            await Step(f"write the day {hint.day} that was taken over")
            self.tables.put_hint_day(hint.day, hint.offset)
            await Step(f"write the hint on {hint.day} of {hint.id} that was taken over")
            self.tables.put_hint(hint)
        return {}

    async def _is_taken_over(self, topic: Topic) -> bool:
        await Step("look whether hints were taken over")
        return self.tables.is_taken_over

    async def _taken_over_days(self, topic: Topic) -> AsyncIterator[list[tuple[str, date]]]:
        await Step("read what kafka-journal left")
        yield self.tables.taken_over_days()

    async def _remember_take_over(self, topic: Topic) -> None:
        await Step("remember that hints were taken over")
        self.tables.is_taken_over = True

    async def _days(self, topic: Topic, last: date) -> list[tuple[date, int]]:
        await Step(f"read the days to {last}")
        return [(day, 0) for day in self.tables.hint_days(last)]

    async def _ids(self, topic: Topic, partition: int, day: date, *, page: int) -> AsyncIterator[list[str]]:
        await Step(f"read the hints on {day}")
        found = self.tables.hints(day)
        for start in range(0, len(found), page):
            yield found[start : start + page]

    async def _load(self, topic: Topic, partition: int, ids: Sequence[str]) -> Mapping[str, Head]:
        heads = {}
        for journal_id in ids:
            await Step(f"read the head of {journal_id}")
            head = self.tables.head(journal_id)
            if head is not None:
                heads[journal_id] = head
        return heads

    async def _remove(self, topic: Topic, partition: int, day: date, first: str, last: str, pointer: int) -> None:
        await Step(f"remove the hints on {day} from {first} to {last}, at {pointer}")
        self.tables.remove_hints(day, first, last, pointer)

    async def _remove_day(self, topic: Topic, partition: int, day: date, pointer: int) -> None:
        await Step(f"remove the day {day}, at {pointer}")
        self.tables.remove_hint_day(day, pointer)


async def look_up(world: World, expiry: type[ExpiryDouble], until_ms: int) -> list[str]:
    """The ids of journals that expire by this time."""
    await Step("read the pointer")
    pointers = {0: world.tables.pointer()}
    pages = expiry(world).due(TOPIC, pointers, until_ms, page=world.random.choice([1, 2, 100]))
    return [journal_id async for ids in pages for journal_id in ids]


def is_old(world: World, offset: int) -> bool:
    """Whether a record is as old as a marker must be: no task begins, or goes on, at or before it any more."""
    return offset < world.oldest()


async def drop_markers(world: World) -> None:
    """Drop purge markers that are so old that no pipeline sleeps since before them."""
    await Step("read the pointer")
    pointers = {0: world.tables.pointer()}
    await Step("list the heads")
    for journal_id, head in world.tables.listed_heads().items():
        if may_drop(head, FOR_EVER, pointers) and is_old(world, head.offset):
            await Step(f"drop the marker of {journal_id}, at {head.offset}")
            world.tables.delete_head(journal_id, TOPIC.base + head.offset)


async def upkeep(world: World, expiry: type[ExpiryDouble]) -> None:
    """One of the two."""
    if world.random.random() < 0.3:
        await drop_markers(world)
    else:
        await look_up(world, expiry, world.now_ms + world.random.randint(0, 3) * DAY_MS)


def check_hints(world: World) -> None:
    """A head that expires is never without its hint, nor its day out of the list."""
    tables = world.tables
    for journal_id in world.ids:
        head = tables.head(journal_id)
        if head is None or head.expire_on is None or not (tables.is_taken_over or tables.is_ours(journal_id)):
            continue
        if journal_id not in tables.hints(head.expire_on) or head.expire_on not in tables.hint_days():
            world.find("hint", journal=journal_id, day=head.expire_on, hints=tables.hints(head.expire_on))


def check_expiry(world: World, expiry: type[ExpiryDouble]) -> None:
    """All is replicated, and nothing else happens: all that expires is found, and no hint stays that does not hold."""
    now = world.journals.now
    expiring = {journal_id: found.expire_on for journal_id, found in now.items() if found.expire_on is not None}
    due = sorted(journal_id for journal_id in expiring if now[journal_id].halted_at is None)
    for _ in range(2):
        found = sorted(run_alone(look_up(world, expiry, LAST_MS)))
        if found != due:
            world.find("expiry", got=found, right=due)
    tables = world.tables
    hints = {(journal_id, day) for day in tables.hint_days() for journal_id in tables.hints(day)}
    if hints != expiring.items() or set(tables.hint_days()) != set(expiring.values()):
        world.find("hints", got=hints, days=tables.hint_days(), right=expiring)
