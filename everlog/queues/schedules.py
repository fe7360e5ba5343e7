"""`queue.schedules`: jobs that a queue puts by itself, again and again.

schedules = log.queue("reports").schedules
await schedules.set("nightly", cron="30 2 * * *", timezone="Europe/Berlin", data={"kind": "full"})
for schedule in await schedules.list():
    print(schedule.name, schedule.next, schedule.paused)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from everlog.core.duration import Duration, duration_text
from everlog.errors import InvalidInput, PayloadTooLarge, ScheduleNotFound
from everlog.queues.declaration import Declaration
from everlog.queues.job import make_key, moment, parse_key
from everlog.queues.keys import decode_key, hash_key
from everlog.queues.labels import check_kind
from everlog.queues.operations import FireSchedules, ListSchedules, PauseSchedule, RemoveSchedule, SetSchedule
from everlog.queues.payload import decode_data, encode_data
from everlog.queues.priority import DEFAULT_PRIORITY, check_priority
from everlog.queues.recurrence import make_recurrence, parse_every
from everlog.queues.schedule import MAX_DATA_BYTES, MAX_NAME, MAX_SCHEDULES, CatchUp, ScheduleRow, time_text

if TYPE_CHECKING:
    from everlog.queues.queue import Queue

MAX_ROUNDS = 100


class NewSchedule(NamedTuple):
    """A schedule to set: `every` or `cron`, and what the job is to be."""

    every: Duration | timedelta | None = None
    cron: str | None = None
    timezone: str | None = None
    catch_up: CatchUp = "one"
    data: Any = None
    priority: int = DEFAULT_PRIORITY
    kind: str | None = None

    def check(self) -> NewSchedule:
        """Itself, if it says when; all that needs no queue is checked then."""
        if (self.every is None) == (self.cron is None):
            raise InvalidInput("give `every` or `cron`" + ("" if self.every is None else ", not both"))
        if self.every is not None and self.timezone is not None:
            raise InvalidInput("`timezone` is for `cron`: `every` counts from 1970, wherever that is")
        if self.catch_up not in get_args(CatchUp):
            raise InvalidInput(f"catch_up is 'one', 'all' or 'none', not {self.catch_up!r}")
        check_priority(self.priority)
        check_kind(self.kind)
        make_recurrence(self.every_ms, self.cron, "UTC" if self.timezone is None else self.timezone)
        return self

    @property
    def every_ms(self) -> int | None:
        return None if self.every is None else parse_every(self.every)


class ScheduleInfo:
    """A schedule as it is seen from outside."""

    def __init__(self, row: ScheduleRow, declaration: Declaration) -> None:
        self.row = row
        self._declaration = declaration

    def __repr__(self) -> str:
        return f"ScheduleInfo({self.name}, {self.timing}{', paused' if self.paused else ''})"

    @property
    def name(self) -> str:
        """It is also the key of the jobs; with `catch_up="all"` their time comes behind it."""
        return self.row.name

    @property
    def timing(self) -> str:
        """When, in words."""
        return self.row.timing_text

    @property
    def every(self) -> str | None:
        return None if self.row.every_ms is None else duration_text(self.row.every_ms)

    @property
    def cron(self) -> str | None:
        return self.row.cron

    @property
    def timezone(self) -> str:
        return self.row.timezone

    @property
    def catch_up(self) -> CatchUp:
        return self.row.catch_up

    @property
    def data(self) -> Any:
        return decode_data(self.row.data, self._declaration, self.row.schema)

    @property
    def priority(self) -> int:
        return self.row.priority

    @property
    def kind(self) -> str | None:
        """The kind of its jobs; None if they have none."""
        return self.row.kind or None

    @property
    def paused(self) -> bool:
        return self.row.paused

    @property
    def next(self) -> datetime | None:
        """The next time; one that is over has come and is not put yet.

        None while it is paused, and where its time zone is not known.
        """
        found = self.row.next_ms
        return None if found is None else moment(found)

    @property
    def last(self) -> datetime | None:
        """The time that was put last."""
        return None if self.row.fired_ms is None else moment(self.row.fired_ms)


class QueueSchedules:
    """The schedules of one queue. Workers of the queue, and servers, put the jobs when their time comes."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def set(
        self,
        name: str,
        *,
        every: Duration | timedelta | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        catch_up: CatchUp = "one",
        data: Any = None,
        priority: int = DEFAULT_PRIORITY,
        kind: str | None = None,
    ) -> ScheduleInfo:
        """Make a schedule, or change the one of that name. The queue must be there. `kind`: that of its jobs.

        What the old one had to put until now is put first. A pause stays, and so does the last time.

        >>> await queue.schedules.set("nightly", cron="@daily", timezone="Europe/Berlin")     # doctest: +SKIP
        """
        new = NewSchedule(every, cron, timezone, catch_up, data, priority, kind).check()
        declaration = await self._queue.declaration()
        wanted = _make_row(name, new, declaration)
        before = await self._find(name)
        if before is None or before.declared != wanted.declared:
            if before is not None and before.timing != wanted.timing:
                await self.fire()
            before = cast("ScheduleRow | None", await self._queue.store.execute(self._queue.name, SetSchedule(wanted)))
        if before is None:
            raise InvalidInput(f"{self._queue.name} has {MAX_SCHEDULES:,} schedules, which is the limit")
        return ScheduleInfo(before, declaration)

    async def list(self) -> list[ScheduleInfo]:
        """All schedules of the queue, by name."""
        declaration = await self._queue.declaration()
        return [ScheduleInfo(row, declaration) for row in await self._rows()]

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule, or ScheduleNotFound."""
        declaration = await self._queue.declaration()
        return ScheduleInfo(await self._known(name), declaration)

    async def pause(self, name: str) -> bool:
        """Let its times pass, until `resume`; whether that is new. They are skipped, whatever `catch_up` says."""
        return await self._pause(name, True)

    async def resume(self, name: str) -> bool:
        return await self._pause(name, False)

    async def remove(self, name: str) -> None:
        """Forget it. The jobs that it has put stay; a worker that declares it makes it again when it starts."""
        row = await self._known(name)
        if not await self._queue.store.execute(self._queue.name, RemoveSchedule(name, row.hash)):
            raise ScheduleNotFound(self._queue.name, name, [one.name for one in await self._rows()])

    async def fire(self) -> int:
        """Put the jobs of all times that have come; how many. Workers and servers do that by themselves."""
        await self._queue.declaration()
        total = 0
        for _ in range(MAX_ROUNDS):
            count = cast(int, await self._queue.store.execute(self._queue.name, FireSchedules()))
            total += count
            if not count:
                break
        return total

    async def _pause(self, name: str, pause: bool) -> bool:
        before = await self._known(name)
        if pause:
            # What was due before the pause is not skipped by it.
            await self._queue.store.execute(self._queue.name, FireSchedules())
        operation = PauseSchedule(name, before.hash, pause)
        after = cast("ScheduleRow | None", await self._queue.store.execute(self._queue.name, operation))
        return after is not None and before.paused != after.paused

    async def _known(self, name: str) -> ScheduleRow:
        await self._queue.declaration()
        rows = await self._rows()
        for row in rows:
            if row.name == name:
                return row
        raise ScheduleNotFound(self._queue.name, name, [row.name for row in rows])

    async def _find(self, name: str) -> ScheduleRow | None:
        return next((row for row in await self._rows() if row.name == name), None)

    async def _rows(self) -> Sequence[ScheduleRow]:
        return cast("list[ScheduleRow]", await self._queue.store.execute(self._queue.name, ListSchedules()))


def _make_row(name: str, new: NewSchedule, declaration: Declaration) -> ScheduleRow:
    """What is stored of a new schedule, checked against the queue."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidInput(f"the name of a schedule is 1 to {MAX_NAME} characters of printable text, not {name!r:.100}")
    key = make_key(declaration, parse_key(declaration, name))
    data = encode_data(new.data, declaration)
    if len(data) - 1 > MAX_DATA_BYTES:
        raise PayloadTooLarge(len(data) - 1, MAX_DATA_BYTES)
    row = ScheduleRow(
        name,
        key,
        hash_key(key),
        data,
        new.priority,
        new.every_ms,
        new.cron,
        "UTC" if new.timezone is None else new.timezone,
        new.catch_up,
        declaration.version,
        kind=check_kind(new.kind),
    )
    check_keys(row, declaration)
    return row


def check_keys(row: ScheduleRow, declaration: Declaration) -> None:
    """With `all` each time has a key of its own: its shard differs, and it is text."""
    if row.catch_up != "all":
        return
    if declaration.options.shards > 1:
        raise InvalidInput(f"catch_up='all' needs a queue with one shard, and {declaration.name} has several")
    found = decode_key(row.key)
    if not isinstance(found, str):
        raise InvalidInput(f"catch_up='all' needs a key that is one text, and those of {declaration.name} are not")
    make_key(declaration, f"{found}@{time_text(1)}")
