"""One run: a random log, random schedules of everybody, and what must be true at the end."""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from everlog.journal.reader import Reader
from everlog.journal.verdict_reader import VerdictReader
from tests.models.doubles import StoreDouble
from tests.models.oracle import facts_of
from tests.models.processes import ModelWriter, Pipeline, judge, look, read, write
from tests.models.scheduler import Process
from tests.models.upkeep import ExpiryDouble, check_expiry, check_hints, upkeep
from tests.models.world import World

TURNS = 500
CRASH = 0.03


@dataclass(frozen=True)
class Setup:
    """Who takes part, and by which rules. `from_start`: a restarted pipeline may have forgotten everything.

    With `upkeep`, days of expiry are looked up meanwhile, and purge markers dropped if they are old; `taken_over`: the
    log and the tables were kafka-journal's first. With `verdicts`, readers want the events of the whole topic that
    count, instead of a journal. `broken` replaces a part of the product by one without its rule.
    """

    pipelines: int = 1
    from_start: bool = True
    halts: bool = False
    clients: int = 2
    store: type[StoreDouble] = StoreDouble
    pipeline: type[Pipeline] = Pipeline
    reader: type[Reader] = Reader
    verdicts: type[VerdictReader] | None = None
    upkeep: type[ExpiryDouble] | None = None
    taken_over: bool = False
    broken: tuple[Any, str, Any] | None = None


class Simulation:
    """A seeded schedule. Everything random comes from one generator, so a seed tells the whole story."""

    def __init__(self, seed: int, setup: Setup) -> None:
        self.random = Random(seed)
        self.setup = setup
        ids = ["a"] if self.random.random() < 0.7 else ["a", "b"]
        self.world = World(self.random, ids, setup.store, setup.halts)
        self.length = self.random.randint(2, 10)
        if setup.taken_over:
            self.world.take_over()
            self.length += len(self.world.log.records)
        self.drivers = [setup.pipeline(self.world) for _ in range(setup.pipelines)]
        self.pipelines = [self._start_pipeline(number, self.world.first) for number in range(setup.pipelines)]
        self.upkeep: list[Process] = []
        self.readers: list[Process] = []
        self.started = 0
        # Each client has a writer of its own, as each is a process of its own.
        readers = [setup.reader(self.world.log, self.world.store) for _ in range(setup.clients)]
        self.writers = [ModelWriter(self.world, f"client {number}", reader) for number, reader in enumerate(readers)]
        self.clients: list[Process] = []
        self.weights = [self.random.random() + 0.05 for _ in range(setup.pipelines)]
        self.pointer = -1
        self.world.upkeep = setup.upkeep is not None
        if not setup.from_start:
            self.world.oldest = lambda: min(driver.done for driver in self.drivers)

    def run(self) -> World:
        try:
            self._mix()
            self._settle()
            self._check()
        except Exception as error:  # whatever a process raises is a finding
            self.world.find("error", error=repr(error))
            self.world.trace.append(traceback.format_exc())
        finally:
            for process in (*self.pipelines, *self.readers, *self.clients, *self.upkeep):
                process.coroutine.close()
        return self.world

    def _start_pipeline(self, number: int, position: int) -> Process:
        driver = self.drivers[number] = self.setup.pipeline(self.world)
        driver.done = position
        return Process(f"pipeline {number}", driver.run(position), self.world.trace)

    def _mix(self) -> None:
        """Everybody a step at a time, in random order."""
        random, world = self.random, self.world
        for _ in range(TURNS):
            if self.setup.upkeep is not None:
                self._turn_upkeep(self.setup.upkeep)
            chance = random.random()
            if chance < 0.1 and len(world.log.records) < self.length:
                world.produce()
            elif chance < 0.18 and len(self.readers) < 3:
                self._start_reader()
            elif chance < 0.21 and len(world.log.records) < self.length:
                self._start_client()
            elif chance < 0.22:
                world.log.trim(random.randint(0, world.tables.pointer() + 1))
                world.tables.drop_verdicts(world.log.start)
            elif chance < 0.5 and self.readers:
                self._turn(self.readers)
            elif chance < 0.58 and self.clients:
                self._turn(self.clients)
            else:
                self._turn_pipeline()
            self._check_pointer()
            if self._all_done():
                break

    def _start_reader(self) -> None:
        self.started += 1
        if self.setup.verdicts is not None:
            coroutine = judge(self.world, self.setup.verdicts)
        else:
            kind = read if self.random.random() < 0.8 else look
            coroutine = kind(self.world, self.setup.reader)
        self.readers.append(Process(f"reader {self.started}", coroutine, self.world.trace))

    def _start_client(self) -> None:
        busy = {client.name for client in self.clients}
        for writer in self.writers:
            if writer.name not in busy:
                self.clients.append(Process(writer.name, write(self.world, writer), self.world.trace))
                return

    def _turn(self, processes: list[Process]) -> None:
        process = self.random.choice(processes)
        process.step()
        if process.finished:
            processes.remove(process)

    def _turn_upkeep(self, expiry: type[ExpiryDouble]) -> None:
        """Sometimes a step of one that is at it, which may also die; and what must always be true is."""
        check_hints(self.world)
        chance = self.random.random()
        if chance < 0.1 and len(self.upkeep) < 2:
            self.started += 1
            self.upkeep.append(Process(f"upkeep {self.started}", upkeep(self.world, expiry), self.world.trace))
        elif chance < 0.3 and self.upkeep:
            self._turn(self.upkeep)
        elif chance < 0.31 and self.upkeep:
            self.upkeep.pop().kill()

    def _turn_pipeline(self) -> None:
        random, count = self.random, len(self.pipelines)
        number = random.choices(range(count), self.weights)[0]
        if random.random() < 0.01:
            self.weights = [random.random() ** 3 + 0.01 for _ in range(count)]
        if random.random() < CRASH:
            self._restart_pipeline(number)
        else:
            self.pipelines[number].step()

    def _restart_pipeline(self, number: int) -> None:
        position = self.world.tables.pointer() + 1
        if self.random.random() < 0.6:
            position = self.drivers[number].done
        elif self.setup.from_start:
            position = self.world.first
        self.pipelines[number].kill()
        self.pipelines[number] = self._start_pipeline(number, position)

    def _all_done(self) -> bool:
        end = len(self.world.log.records)
        return (
            end >= self.length
            and not self.readers
            and not self.clients
            and all(driver.done >= end for driver in self.drivers)
        )

    def _settle(self) -> None:
        """Some pipelines come to the end, others sleep; a fresh one does the rest; then the sleepers wake up."""
        world, random = self.world, self.random
        while len(world.log.records) < self.length:
            world.produce()
        for client in self.clients:
            client.finish()
        for process in random.sample(self.pipelines, len(self.pipelines)):
            if random.random() < 0.5:
                process.finish()
        world.trace.append("a fresh pipeline")
        fresh = Process("fresh", self.setup.pipeline(world).run(world.tables.pointer() + 1), world.trace)
        fresh.finish()
        fresh.coroutine.close()
        for reader in self.readers:
            reader.finish()
        self._read_all()
        world.trace.append("those who slept wake up")
        for process in (*self.pipelines, *self.upkeep):
            process.finish()
        self._read_all()
        self._check_pointer()
        if self.setup.upkeep is not None:
            check_hints(self.world)
            check_expiry(self.world, self.setup.upkeep)

    def _read_all(self) -> None:
        for _ in range(2):
            for kind in (read, look):
                Process("last reader", kind(self.world, self.setup.reader), self.world.trace).finish()
            if self.setup.verdicts is not None:
                Process("last judge", judge(self.world, self.setup.verdicts), self.world.trace).finish()

    def _check_pointer(self) -> None:
        pointer = self.world.tables.pointer()
        if pointer < self.pointer:
            self.world.find("pointer moved back", before=self.pointer, now=pointer)
        self.pointer = pointer

    def _check(self) -> None:
        """The tables hold exactly what the log says, no more, no less; and everybody's verdicts are the same."""
        world = self.world
        for journal_id, oracle in world.journals.now.items():
            head, right = facts_of(world.tables.head(journal_id)), oracle.state()
            if world.known(head) != world.known(right.facts):
                world.find("head", journal=journal_id, got=head, right=right.facts)
            rows = [(event.seq_nr, event.offset) for event in world.tables.all_events(journal_id)]
            if sorted(rows) != sorted(right.events):
                world.find("rows", journal=journal_id, got=rows, right=right.events)
            waiting = [found.record.offset for found in world.tables.waiting(journal_id)]
            if waiting != [record.offset for record in oracle.waiting]:
                world.find("waiting", journal=journal_id, got=waiting, right=oracle.waiting)
            won = {offset for owner, offset in world.store.won if owner == journal_id}
            lost = {offset for owner, offset in world.store.lost if owner == journal_id}
            if not won <= oracle.accepted.keys() or not lost <= oracle.rejected:
                world.find("verdict", journal=journal_id, won=won - oracle.accepted.keys(), lost=lost - oracle.rejected)
            if len(set(oracle.append_ids)) < len(oracle.append_ids):
                world.find("one append stored twice", journal=journal_id, ids=oracle.append_ids)


def run(seed: int, setup: Setup) -> World:
    """One run by its seed."""
    with ExitStack() as stack:
        if setup.broken is not None:
            stack.enter_context(patch.object(*setup.broken))
        return Simulation(seed, setup).run()


def story(seed: int, setup: Setup, world: World) -> str:
    """What a failing test prints: how to repeat it, and everything that happened."""
    return "\n".join([f"seed {seed} of {setup}", *world.findings, "the schedule:", *world.trace])
