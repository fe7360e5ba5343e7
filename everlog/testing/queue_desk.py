"""One queue of a store in virtual time, with short words for what the suites do to it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from everlog.config.queue_options import make_options
from everlog.queues.declaration import ColumnSchema, Declaration
from everlog.queues.keys import decode_key, encode_key, hash_key
from everlog.queues.operations import (
    AskDue,
    AskStats,
    BeatAnswer,
    Cancel,
    Claim,
    Done,
    DueAnswer,
    Fail,
    Get,
    Handle,
    Heartbeat,
    JobLease,
    JobResult,
    ListDead,
    ListFlags,
    ListHistory,
    Operation,
    Peek,
    Put,
    PutAnswer,
    Release,
    ReleaseFlag,
    Stats,
)
from everlog.queues.port import QueueStore
from everlog.queues.rows import DeadLetter, EndedRow, Flag, JobRow, Packet

T = 1_700_000_000_000
"""The moment at which virtual time begins, ms."""
HOUR = 3_600_000


class VirtualClock:
    """Time that passes only when it is told to."""

    def __init__(self, now_ms: int = T) -> None:
        self.now = now_ms
        self._ids = itertools.count(1)

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"


class VirtualQueue:
    """One queue of a store, with short words for what tests do to it."""

    def __init__(self, store: QueueStore, clock: VirtualClock, name: str = "jobs") -> None:
        self.store = store
        self.clock = clock
        self.name = name

    async def declare(self, schema: ColumnSchema | None = None, **options: Any) -> Declaration:
        wanted = Declaration(self.name, make_options(**options), () if schema is None else (schema,))
        return await self.store.declare(wanted)

    async def do(self, operation: Operation) -> Any:
        return await self.store.execute(self.name, operation)

    async def enq(
        self,
        key: str = "a",
        pri: int = 128,
        proc: int | None = None,
        exp: int = 0,
        data: object = 1,
        *,
        ins: int | None = None,
        schema: int = 1,
        key_hash: bytes | None = None,
        group: str = "",
    ) -> PutAnswer:
        """`proc` and `ins` in ms after T, `exp` in s after T."""
        encoded = encode_key(key)
        packet = Packet(
            encoded,
            key_hash or hash_key(encoded),
            str(data).encode(),
            pri,
            self.clock.now if ins is None else T + ins,
            None if proc is None else T + proc,
            T // 1000 + exp if exp else 0,
            schema,
            group=group,
        )
        answer: PutAnswer = await self.do(Put(packet))
        return answer

    async def claim(
        self, limit: int = 1, *, owner: str = "w", lease: int | None = None, fast: bool = False
    ) -> list[JobLease]:
        leases: list[JobLease] = await self.do(Claim(owner, limit, lease, fast))
        return leases

    async def one(self, **options: Any) -> JobLease:
        (lease,) = await self.claim(**options)
        return lease

    async def done(self, lease: JobLease, result: JobResult | None = None) -> str:
        answer: str = await self.do(Done(handle(lease), result))
        return answer

    async def fail(
        self, lease: JobLease, reason: str | None = None, delay: int | None = None, retry: bool = True
    ) -> str:
        answer: str = await self.do(Fail(handle(lease), reason, delay, retry))
        return answer

    async def release(self, lease: JobLease, delay: int | None = None, flag: ReleaseFlag | None = None) -> str:
        answer: str = await self.do(Release(handle(lease), delay, flag))
        return answer

    async def beat(self, lease: JobLease) -> BeatAnswer:
        answer: BeatAnswer = await self.do(Heartbeat(handle(lease)))
        return answer

    async def cancel(self, key: str = "a", reason: str | None = None, entry: int | None = None) -> int:
        encoded = encode_key(key)
        count: int = await self.do(Cancel(encoded, hash_key(encoded), reason, entry))
        return count

    async def rows(self, key: str = "a") -> list[JobRow]:
        encoded = encode_key(key)
        rows: list[JobRow] = await self.do(Get(encoded, hash_key(encoded)))
        return rows

    async def row(self, key: str = "a") -> JobRow:
        (row,) = await self.rows(key)
        return row

    async def peek(self, limit: int = 10, after: tuple[int, int, bytes, int] | None = None) -> list[JobRow]:
        rows: list[JobRow] = await self.do(Peek(limit, after))
        return rows

    async def dead(self) -> list[DeadLetter]:
        letters: list[DeadLetter] = await self.do(ListDead())
        return letters

    async def history(
        self, limit: int = 100, before: tuple[int, int, int] | None = None, key: str | None = None
    ) -> list[EndedRow]:
        encoded = None if key is None else encode_key(key)
        wanted = ListHistory(limit, before, encoded, None if encoded is None else hash_key(encoded))
        rows: list[EndedRow] = await self.do(wanted)
        return rows

    async def flags(self) -> dict[str, Flag]:
        flags: list[Flag] = await self.do(ListFlags())
        return {flag.reason: flag for flag in flags}

    async def stats(self) -> Stats:
        stats: Stats = await self.do(AskStats())
        return stats

    async def due(self, limit: int = 1000) -> DueAnswer:
        answer: DueAnswer = await self.do(AskDue(limit))
        return answer

    def counted(self, kind: str) -> int:
        return self.store.counted(self.name)[kind]

    async def totals(self) -> Counter[str]:
        """What was done, without what did not happen."""
        return +await self.store.totals(self.name)

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.clock.now += ms


def handle(lease: JobLease) -> Handle:
    return Handle(lease.row.entry, lease.row.token)


def keys(leases: Sequence[JobLease]) -> list[Any]:
    return [decode_key(lease.row.key) for lease in leases]


def number(row: JobRow) -> int:
    return int(row.image.data)
