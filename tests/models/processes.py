"""Those who take part in a run: pipelines, readers, and clients that append through the real Writer."""

from __future__ import annotations

from datetime import timedelta

from everlog.core.actions import Action, encode_action
from everlog.core.events import Event
from everlog.core.record import Headers, NewRecord, Record
from everlog.core.values import Version
from everlog.errors import Conflict, JournalHalted, LogTruncated, OutcomeDeleted, OutcomeUnknown, Overtaken
from everlog.journal.reader import Reader, Ref, Span
from everlog.journal.verdict_reader import VerdictReader
from everlog.journal.writer import Appended, Draft, Origin, Writer
from everlog.log.port import Ack
from everlog.pipeline.apply import KeyGroups, apply
from everlog.pipeline.head_cache import KnownHeads
from everlog.store.port import Store
from tests.models.oracle import facts_of
from tests.models.scheduler import Step
from tests.models.world import LOG_TOPIC, TOPIC, World, ref_of

BATCHES = (1, 1, 2, 3, 4, 6)
PAGES = (1, 2, 3, 100)


class Pipeline:
    """Replicates batch after batch from a position on: the driver's loop around the real `apply`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done = 0

    async def run(self, position: int) -> None:
        log = self.world.log
        while True:
            if position >= len(log.records):
                await Step("idle")
                continue
            end = min(len(log.records), position + self.world.random.choice(BATCHES))
            self.world.trace.append(f"a batch from {position} to {end - 1}")
            await self.replicate(log.records[position:end], end - 1)
            position = self.done = end

    async def replicate(self, records: list[Record], last: int) -> None:
        await self.apply(self.world.store, records)
        await self.publish(last)

    async def apply(self, store: Store, records: list[Record], known: KnownHeads | None = None) -> None:
        grouped = KeyGroups()
        grouped.add(TOPIC, records)
        applied = await apply(store, TOPIC, 0, grouped, known=known)
        if applied.failed:
            self.world.find("failed", keys=applied.failed)

    async def publish(self, last: int) -> None:
        await self.world.store.publish({(TOPIC.name, 0): last}, self.world.now_ms)


async def read(world: World, reader_class: type[Reader]) -> None:
    """One read, which must give what the journal was at some moment between its start and its end."""
    random = world.random
    journal_id, first, reverse = random.choice(world.ids), random.choice([1, 1, 1, 2, 4]), random.random() < 0.2
    reader = reader_class(world.log, world.store, page_size=random.choice(PAGES))
    began, events, halted_at = len(world.log.records), [], None
    try:
        async for page in reader.read(ref_of(journal_id), Span(first=first, reverse=reverse)):
            events += [(event.seq_nr, event.offset) for event in page]
    except JournalHalted as error:
        halted_at = error.offset
    except Overtaken:
        world.overtaken += 1
        return
    answer = (tuple(sorted(events)) if events == sorted(events, reverse=reverse) else tuple(events), halted_at)
    right = {
        (tuple(event for event in state.events if event[0] >= first), state.facts.halted_at)
        for state in world.journals.after[journal_id][began:]
    }
    if answer not in right:
        grown = f"{began}-{len(world.log.records)}"
        world.find("read", journal=journal_id, got=answer, right=right, first=first, reverse=reverse, log=grown)


async def look(world: World, reader_class: type[Reader]) -> None:
    """Like a read, but of the head alone."""
    journal_id, began = world.random.choice(world.ids), len(world.log.records)
    reader = reader_class(world.log, world.store, page_size=world.random.choice(PAGES))
    try:
        view = await reader.view(ref_of(journal_id))
    except Overtaken:
        world.overtaken += 1
        return
    right = {world.known(state.facts) for state in world.journals.after[journal_id][began:]}
    if world.known(facts_of(view.state)) not in right:
        world.find("view", journal=journal_id, got=facts_of(view.state), right=right)


async def judge(world: World, reader_class: type[VerdictReader]) -> None:
    """Read the log from anywhere up to its end, as a projection over a topic's events does, and name what counts."""
    random, log = world.random, world.log
    pointer = await world.store.pointer(TOPIC.name, 0)
    first = random.randint(log.start, len(log.records))
    at = first if random.random() < 0.5 else max(log.start, min(first, pointer + 1))
    sizes = {"page_size": random.choice(PAGES), "max_known": random.choice([0, 1, 10])}
    reader = reader_class(log, world.store, LOG_TOPIC, TOPIC, 0, start=at, **sizes)
    while at < len(log.records):
        end = min(len(log.records), at + random.choice(BATCHES))
        page = log.records[at:end]
        await Step(f"read the log from {at} to {end - 1}")
        if log.start > at:
            return  # as a reader of the log says
        try:
            found = await reader.judge(page)
        except (LogTruncated, Overtaken):
            world.overtaken += 1
            return
        for record, accepted in zip(page, found, strict=True):
            got, right = [one.record.offset for one in accepted.appends], world.journals.counted[record.offset]
            if accepted.offset != record.offset or got != right:
                world.find("events", at=record.offset, got=got, right=right)
        world.judged += len(page)
        at = end


class ModelClock:
    """The world's time."""

    def __init__(self, world: World) -> None:
        self.world = world

    def now_ms(self) -> int:
        return self.world.tick()

    def monotonic(self) -> float:
        return self.world.now_ms / 1000

    def new_id(self) -> str:
        self.world.tick()
        return self.world.new_life()


class ModelWriter(Writer):
    """The real one, but for the time-out around the log, which needs an event loop: here, answers get lost."""

    loses_record = 0.05
    loses_answer = 0.05

    def __init__(self, world: World, name: str, reader: Reader) -> None:
        clock, page = ModelClock(world), world.random.choice(PAGES)
        super().__init__(
            world.log,
            reader,
            clock,
            Origin("model", "1"),
            max_append_bytes=1_000_000,
            max_known_journals=world.random.choice([1, 10]),
            page_size=page,
        )
        self.world = world
        self.name = name
        self.clock = clock
        self.sent: list[int] = []

    async def produce(
        self, ref: Ref, action: Action, value: bytes | None = None, headers: Headers = (), append_id: str = ""
    ) -> tuple[Ack, Record]:
        fate = self.world.random.random()
        if fate < self.loses_record:
            raise OutcomeUnknown(str(ref), append_id, "the record is lost")
        new = NewRecord(ref.partition, self.clock.now_ms(), ref.key, encode_action(action), value, headers)
        ack = await self._log.append(ref.log_topic, new)
        if fate < self.loses_record + self.loses_answer:
            raise OutcomeUnknown(str(ref), append_id, "the answer is lost")
        self.sent.append(ack.offset)
        return ack, self.world.log.records[ack.offset]


async def write(world: World, writer: ModelWriter) -> None:
    """One append through the real Writer; its verdict must be the oracle's."""
    random = world.random
    journal_id = random.choice(world.ids)
    oracle, count = world.journals.now[journal_id], random.choice([1, 1, 2])
    seq_nr = oracle.seq_nr
    first = random.choice([None, seq_nr + 1, seq_nr + 2])
    events = [Event("written", seq_nr=None if first is None else first + at) for at in range(count)]
    version = Version(seq_nr, oracle.record_id)
    expected = random.choice([None, seq_nr, version]) if first is None else None
    purges = oracle.purges
    after = random.choice([None, timedelta(days=1)])
    draft, append_id = Draft(events, expected=expected, expire_after=after), None
    for _ in range(3):
        sent = len(writer.sent)
        try:
            appended = await writer.append(ref_of(journal_id), draft, verdict=True, append_id=append_id)
        except OutcomeUnknown as error:
            append_id = error.append_id
            continue
        except OutcomeDeleted:
            pass
        except Conflict:
            undecided = {record.offset for record in oracle.waiting} | oracle.accepted.keys()
            if len(writer.sent) > sent and writer.sent[-1] in undecided:
                world.find("conflict that won, or still may", journal=journal_id, offset=writer.sent[-1])
            if (oracle.record_id, append_id) in oracle.append_ids:
                world.find("conflict with itself", journal=journal_id, append_id=append_id)
        except JournalHalted:
            pass
        else:
            _check_win(world, journal_id, appended)
            if isinstance(expected, Version) and expected and oracle.purges_before.get(appended.offset) != purges:
                world.find("win in another life", journal=journal_id, told=appended)
        return


def _check_win(world: World, journal_id: str, appended: Appended) -> None:
    numbers = world.journals.now[journal_id].accepted.get(appended.offset)
    if numbers is None or (numbers[0], numbers[-1]) != appended.range:
        world.find("win that lost", journal=journal_id, told=appended, accepted=numbers)
