"""Random steps of several clients on the same journals, each answer compared with what a naive model says."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import everlog
from everlog.api import Everlog
from everlog.config import Config
from everlog.console.server import serving
from everlog.testing.replication import replicate
from tests.journal.journal_client import TOPIC, ClientClock, JournalClient, ProcessClient, Words
from tests.journal.journal_model import JournalModel
from tests.support import START_MS

KEYS = ("a", "b", "c", "d")
PAYLOADS: tuple[Any, ...] = ("text", "", {"k": [1, None]}, 17, None, [], {"deep": {"er": True}})
SHOWN = 40
Upkeep = Callable[[Random], Awaitable[None]]


class Differential:
    """One run, by its seed."""

    def __init__(self, seed: int, log: Everlog, clients: list[Any], *, upkeep: Upkeep | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.log = log
        self.clients = clients
        self.model = JournalModel(START_MS)
        self.trace: deque[str] = deque(maxlen=SHOWN)
        self.old: dict[str, list[str]] = {key: ["0"] for key in KEYS}
        self.keyed: list[Words] = []
        self.handles: dict[int, int] = {}
        self.calls = 0
        self.happened: Counter[str] = Counter()
        self.upkeep = upkeep or self._replicate

    async def run(self, calls: int) -> None:
        """So many more calls of clients: a step may make none, or several."""
        end = self.calls + calls
        while self.calls < end:
            await self._step()
        await self.upkeep(self.random)
        for key in KEYS:
            await self._check(key)

    async def _step(self) -> None:
        random = self.random
        kinds: dict[Callable[[], Awaitable[None]], int] = {
            self._append: 40,
            self._repeat: 8,
            self._read: 14,
            self._look: 8,
            self._delete: 6,
            self._purge: 4,
            self._begin_again: 4,
            self._let_expire: 3,
            self._at_once: 10,
            self._save: 6,
            self._recover: 6,
            self._consume: 12,
            self._delete_behind: 2,
            self._pass_time: 6,
            self._maintain: 8,
            self._clear: 4,
        }
        await random.choices(list(kinds), list(kinds.values()))[0]()

    async def _ask(self, words: Words, client: int | None = None) -> Words:
        """The same of a client and of the model; they must agree."""
        at = self.random.randrange(len(self.clients)) if client is None else client
        answer = await self._do(at, words)
        right = self._right(words, answer)
        if answer != right:
            raise self._wrong(f"got {answer}, right is {right}")
        return answer

    async def _do(self, at: int, words: Words) -> Words:
        answer: Words = await self.clients[at].do(words)
        self.calls += 1
        self.happened[f"{words['do']}: {answer.get('error') or answer.get('end') or 'done'}"] += 1
        self.trace.append(f"client {at}: {json.dumps(words)} -> {json.dumps(answer)}")
        return answer

    def _wrong(self, what: str) -> AssertionError:
        told = "\n".join(self.trace)
        return AssertionError(f"seed {self.seed}, call {self.calls}: {what}\n{told}")

    def _right(self, words: Words, answer: Words) -> Words:
        """What the model says, with the names that the library gave to lives."""
        given = dict(words)
        name = given.pop("do")
        right = self.model.consume(**given, answer=answer) if name == "consume" else getattr(self.model, name)(**given)
        if name == "append" and right.get("last"):
            right = {**right, "life": self._life_of(words["key"], answer) if right["life"] else None}
        if answer != right and name in ("pointer", "recover") and not right.get("error"):
            right = self._named(words["key"], answer, right)
        return right

    async def _at_once(self) -> None:
        """Two calls of two clients at the same time: the answers must be right in one order or the other."""
        random = self.random
        makers = [
            self._some_append,
            self._some_append,
            self._some_read,
            self._some_look,
            self._some_delete,
            self._some_save,
        ]
        wanted = [random.choice(makers)() for _ in range(2)]
        if random.random() < 0.3:
            wanted[1] = {"do": "purge", "key": random.choice(KEYS)}
        if random.random() < 0.6 and "key" in wanted[0] and "key" in wanted[1]:
            wanted[1]["key"] = wanted[0]["key"]
        at = random.sample(range(len(self.clients)), 2)
        answers = await asyncio.gather(*(self._do(*pair) for pair in zip(at, wanted, strict=True)))
        for key in {one["key"] for one in wanted if "key" in one}:  # which tells orders apart that the answers do not
            for look in ("pointer", "read", "load"):
                wanted.append({"do": look, "key": key})
                answers.append(await self._do(at[0], wanted[-1]))
        before, rest = self.model, range(2, len(wanted))
        beside = {0: wanted[1], 1: wanted[0]}
        for order in ((0, 1), (1, 0)):
            self.model = copy.deepcopy(before)
            if all(self._fits(wanted[one], answers[one], beside.get(one)) for one in (*order, *rest)):
                self.happened[f"at once: {'as asked' if order == (0, 1) else 'the other way round'}"] += 1
                return
        raise self._wrong(f"of two calls at once got {answers[:2]}, which is right in neither order")

    def _fits(self, words: Words, answer: Words, beside: Words | None) -> bool:
        """A writer that had looked for its key before it lost to a purge knows that it was not there: a conflict.

        A read beside a delete or a purge may have given out a page already: it says that it was overtaken.
        """
        right = self._right(words, answer)
        if answer == right or (right.get("error"), answer.get("error")) == ("OutcomeDeleted", "Conflict"):
            return True
        if words["do"] != "read" or beside is None:
            return False
        removes = beside["do"] in ("delete", "purge") and beside["key"] == words["key"]
        return removes and answer == {"error": "Overtaken"}

    def _life_of(self, key: str, answer: Words) -> str | None:
        """A life's name is the library's: the first answer that tells it is right, and it must never change."""
        life = self.model.lives[key]
        if life.name is None:
            life.name = answer.get("life")
        return life.name

    def _named(self, key: str, answer: Words, right: Words) -> Words:
        """The first answer that names a life which an append without a verdict began."""
        life = self.model.lives.get(key)
        number, _, name = (answer.get("version") or "").partition("@")
        if life is None or life.name is not None or not name or number != right["version"]:
            return right
        life.name = name
        return {**right, "version": answer["version"]}

    async def _append(self) -> None:
        words = self._some_append()
        await self._ask(words)
        self.old[words["key"]].append(self.model.version(words["key"]))

    def _some_append(self) -> Words:
        random, key = self.random, self.random.choice(KEYS)
        words: Words = {"do": "append", "key": key, "payloads": random.choices(PAYLOADS, k=random.choice([1, 1, 2, 5]))}
        life = self.model.lives.get(key)
        at = 0 if life is None else life.seq_nr
        chance = random.random()
        if chance < 0.35:
            version = self.model.version(key)
            stale = random.choice([str(at), version, *self.old[key][-3:], str(max(0, at - 1))])
            words["expected"] = random.choice([str(at), version, stale])
            if random.random() < 0.5:
                words["idempotency_key"] = f"key-{random.randrange(6)}"
        elif chance < 0.5:
            words["seq_nr"] = max(1, at + random.choice([1, 1, 2, 4, 0]))
            if random.random() < 0.3:
                words["verdict"] = False
        if random.random() < 0.15:
            words["expire_s"] = random.choice([1, 3600, 23 * 3600, 100_000])
        if "idempotency_key" in words:
            self.keyed.append(words)
        return words

    async def _repeat(self) -> None:
        """An append with a key of its own once more, as it was or with other events."""
        if not self.keyed:
            return
        words = dict(self.random.choice(self.keyed[-8:]))
        if self.random.random() < 0.2:
            words["payloads"] = [*words["payloads"][:-1], "something else"]
        await self._ask(words)

    async def _read(self) -> None:
        await self._ask(self._some_read())

    def _some_read(self) -> Words:
        random = self.random
        first = random.choice([1, 1, 1, 2, 5])
        words: Words = {"do": "read", "key": random.choice(KEYS), "from_seq": first}
        if random.random() < 0.3:
            words |= {"to_seq": first + random.randrange(6), "limit": random.choice([1, 3, 100])}
        return {**words, "reverse": random.random() < 0.3}

    async def _look(self) -> None:
        await self._ask(self._some_look())

    def _some_look(self) -> Words:
        key = self.random.choice(KEYS)
        return self.random.choice([{"do": "pointer", "key": key}, {"do": "load", "key": key}, {"do": "keys"}])

    async def _delete(self) -> None:
        await self._ask(self._some_delete())

    def _some_delete(self) -> Words:
        key = self.random.choice(KEYS)
        life = self.model.lives.get(key)
        to = self.random.randint(1, max(1, (0 if life is None else life.seq_nr) + 1))
        return {"do": "delete", "key": key, "to": to}

    async def _purge(self) -> None:
        await self._ask({"do": self.random.choice(["purge", "purge", "mark"]), "key": self.random.choice(KEYS)})

    async def _begin_again(self) -> None:
        """A new life that gets as far as the old one was; then an append of a client that may know the old one only."""
        random, key = self.random, self.random.choice(KEYS)
        before, life = self.model.version(key), self.model.lives.get(key)
        if life is None or life.seq_nr > 6:
            return
        if random.random() < 0.5:
            await self._ask({"do": "save", "key": key, "version": before, "payload": "of the old life"})
        await self._ask({"do": "purge", "key": key})
        await self._ask({"do": "append", "key": key, "payloads": random.choices(PAYLOADS, k=life.seq_nr)})
        if random.random() < 0.5:
            await self._ask({"do": "load", "key": key})
        expected = random.choice([before, str(life.seq_nr)])
        await self._ask({"do": "append", "key": key, "payloads": ["after all"], "expected": expected})

    async def _let_expire(self) -> None:
        """Around the moment when a journal expires, as its last append says, which the tables may not have yet."""
        random, key = self.random, self.random.choice(KEYS)
        seconds = random.choice([1, 3600, 23 * 3600])
        await self._ask({"do": "append", "key": key, "payloads": ["to expire"], "expire_s": seconds})
        await self.upkeep(random)
        if random.random() < 0.6:
            later = random.choice([{}, {"expire_s": 2 * seconds}, {"expire_s": 2 * seconds}])
            await self._ask({"do": "append", "key": key, "payloads": ["to go on"], **later})
        await self._advance(seconds + random.choice([-0.001, 0, 0, 600]))
        await self._expire()

    async def _save(self) -> None:
        await self._ask(self._some_save())

    def _some_save(self) -> Words:
        key = self.random.choice(KEYS)
        version = self.random.choice([self.model.version(key), self.random.choice(self.old[key])])
        if version.partition("@")[0] == "0":
            version = "1"
        return {"do": "save", "key": key, "version": version, "payload": self.random.choice(PAYLOADS)}

    async def _recover(self) -> None:
        if len(self.handles) < 6:
            handle, client = self.calls, self.random.randrange(len(self.clients))
            await self._ask({"do": "recover", "key": self.random.choice(KEYS), "handle": handle}, client)
            self.handles[handle] = client

    async def _consume(self) -> None:
        if self.handles:
            handle = self.random.choice(list(self.handles))
            words = {"do": "consume", "handle": handle, "count": self.random.choice([1, 3, 100])}
            if (await self._ask(words, self.handles[handle]))["end"] is not None:
                del self.handles[handle]

    async def _delete_behind(self) -> None:
        """Delete what a recovery gave out already, or a little more, while several pages are still to come."""
        random, key, handle = self.random, self.random.choice(KEYS), self.calls
        client = random.randrange(len(self.clients))
        await self._ask({"do": "append", "key": key, "payloads": random.choices(PAYLOADS, k=10)})
        await self.upkeep(random)
        await self._ask({"do": "recover", "key": key, "handle": handle}, client)
        given = await self._ask({"do": "consume", "handle": handle, "count": random.choice([2, 4, 5])}, client)
        self.handles[handle] = client
        await self._ask({"do": "delete", "key": key, "to": given["events"][-1][0] + random.choice([0, 0, 1])})
        await self.upkeep(random)

    async def _pass_time(self) -> None:
        await self._advance(self.random.choice([0.5, 600, 7200, 20 * 3600]))

    async def _advance(self, seconds: float) -> None:
        """For all clients alike."""
        for client in self.clients:
            await client.do({"do": "advance", "seconds": seconds})
        self.trace.append(f"{seconds} s pass")
        self.model.advance(seconds)

    async def _maintain(self) -> None:
        await self.upkeep(self.random)

    async def _replicate(self, random: Random) -> None:
        """The pipeline, in this process."""
        chance = random.random()
        if chance < 0.3:
            await replicate(self.log, batch=random.choice([1, 2, 5]), batches=random.choice([1, 3]))
        elif chance < 0.4:
            await replicate(self.log, publish=False)
        else:
            await replicate(self.log)
            self.model.replicated()

    async def _clear(self) -> None:
        """Remove what is in the tables already, or has expired: at any time, however far the tables are."""
        if self.random.random() < 0.5:
            self.happened["trimmed"] += sum((await self.log.trim()).values())
        else:
            await self._expire()

    async def _expire(self) -> None:
        purged = sum((await self.log.expire()).purged.values())
        self.trace.append(f"expired: {purged}")
        self.happened["expired"] += purged
        gone = []
        for key in self.model.due():
            if await self.log.journal(TOPIC).pointer(key) is None:
                gone.append(key)
            elif self.model.lives[key].is_stored:
                raise self._wrong(f"{key} has expired, and is still there")
            else:
                self.happened["expired, but not in the tables"] += 1
        self.model.expire(gone)
        if purged != len(gone):
            raise self._wrong(f"{purged} journals expired, not {gone}")

    async def _check(self, key: str) -> None:
        for at in range(len(self.clients)):
            for name in ("read", "pointer", "load"):
                await self._ask({"do": name, "key": key}, at)


@asynccontextmanager
async def clients_of(config: Config, folder: Path, *, process: bool = True) -> AsyncIterator[tuple[Everlog, list[Any]]]:
    """A log, another one on the same data, a client of a server, and a process."""
    async with AsyncExitStack() as stack:
        clients: list[Any] = []
        clocks = [ClientClock(START_MS, f"client {at}") for at in range(3)]
        first = await stack.enter_async_context(everlog.connect(config, clock=clocks[0]))
        second = await stack.enter_async_context(everlog.connect(config, clock=clocks[1]))
        address = await stack.enter_async_context(serving(second, host="127.0.0.1", port=0))
        remote = await stack.enter_async_context(everlog.connect(address, clock=clocks[2]))
        for log, clock in zip((first, second, remote), clocks, strict=True):
            client = JournalClient(log, clock)
            stack.push_async_callback(client.close)
            clients.append(client)
        if process:
            file = folder / "config.json"
            file.write_bytes(msgspec.json.encode(config))
            other = await ProcessClient.start(file, START_MS, "process")
            stack.push_async_callback(other.close)
            clients.append(other)
        yield first, clients
