"""Random journals that expire, against a dictionary of times."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.testing import replicate
from everlog.testing.journal_support import keys
from tests.support import ManualClock

HOUR_MS = 3_600_000


async def check_expiry(log: Everlog, clock: ManualClock, random: Random, *, runs: int, appends: int) -> None:
    """Journals are there until their time, and gone after the first run at or after it, whatever that time is.

    The clock moves by up to nine hours between runs. Some appends extend a life or cut it short, some make it endless,
    and some are not replicated when the next run comes; those wait for a later one at most.
    """
    journal = log.journal("t")
    times: dict[str, int | None] = {}
    for _ in range(runs):
        for _ in range(random.randint(0, appends)):
            name = f"k{random.randrange(2 * appends)}"
            after = _duration(random)
            await journal.append(name, Event(1), expire_after=after)
            times[name] = None if after is None else clock.now_ms() + -(-after // timedelta(milliseconds=1))
        if random.random() < 0.9:
            await replicate(log)
        clock.advance(_pause_ms(random, clock.now_ms(), times) / 1000)
        before = set(await keys(journal))
        assert before == times.keys()
        await log.expire()
        gone = before - set(await keys(journal))
        due = {name for name, at in times.items() if at is not None and at <= clock.now_ms()}
        assert gone <= due, "purged too early"
        await replicate(log)
        await log.expire()
        times = {name: at for name, at in times.items() if name not in due}
        assert set(await keys(journal)) == times.keys()


def _duration(random: Random) -> timedelta | None:
    return random.choice(
        [
            None,
            timedelta(hours=23),
            timedelta(microseconds=random.randint(1, 10**9)),
            timedelta(milliseconds=random.randint(1, 30 * HOUR_MS)),
        ]
    )


def _pause_ms(random: Random, now_ms: int, times: dict[str, int | None]) -> int:
    """Any pause, or one that ends at a journal's very time or a millisecond beside it."""
    near = sorted(at - now_ms for at in times.values() if at is not None and at > now_ms)
    if near and near[0] < 9 * HOUR_MS and random.random() < 0.5:
        return max(0, near[0] + random.choice([-1, 0, 1]))
    return random.randint(0, 9 * HOUR_MS)
